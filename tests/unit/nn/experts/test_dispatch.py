"""Dispatch by one sort equals every expert on every token, in values and both derivatives, with and without room."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from holdfast.nn.experts import dispatch
from holdfast.nn.experts.dispatch import grouped_linear, sort_pairs, expert_capacity, apply_all_experts, apply_experts

T, D, H, E = 11, 8, 16, 5


def made(k: int = 2, *, dtype=torch.float32, seed: int = 0, experts: int = E):
    chance = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=chance, dtype=dtype)
    parts = draw(experts, H, D), draw(experts, H), draw(experts, D, H), draw(experts, D)
    scores = draw(T, experts)
    scores[:, 1] = -9.0  # an expert that nobody chooses
    gates, chosen = scores.softmax(-1).topk(k, -1)
    return draw(T, D), gates, chosen, parts


def naive(u, gates, chosen, parts):
    """Token by token and choice by choice."""
    up, up_bias, down, down_bias = parts
    rows = []
    for i in range(len(u)):
        total = torch.zeros_like(u[i])
        for gate, e in zip(gates[i], chosen[i].tolist(), strict=True):
            hidden = F.gelu(up[e] @ u[i] + up_bias[e])
            total = total + gate * (down[e] @ hidden + down_bias[e])
        rows.append(total)
    return torch.stack(rows)


def sorted_way(u, gates, chosen, parts, *, loop=False, **options):
    return apply_experts(u, gates, sort_pairs(chosen, len(parts[0]), **options), parts, F.gelu, loop=loop)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("case", ["as they come", "one token", "all on the same"])
def test_values_and_gradients_are_the_naive_ones(case, k, loop):
    u, gates, chosen, parts = made(k)
    if case == "one token":
        u, gates, chosen = u[:1], gates[:1], chosen[:1]
    elif case == "all on the same":
        chosen = chosen[:1].expand(T, -1)
    leaves = [t.clone().requires_grad_() for t in (u, gates, *parts)]
    same = [t.clone().requires_grad_() for t in (u, gates, *parts)]
    mine = sorted_way(leaves[0], leaves[1], chosen, tuple(leaves[2:]), loop=loop)
    theirs = naive(same[0], same[1], chosen, tuple(same[2:]))
    assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    weight = torch.randn(len(u), D, generator=torch.Generator().manual_seed(1))
    for a, b in zip(
        torch.autograd.grad((mine * weight).sum(), leaves), torch.autograd.grad((theirs * weight).sum(), same),
        strict=True,
    ):  # fmt: skip
        assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not bool(torch.autograd.grad(sorted_way(u, gates, chosen, tuple(leaves[2:])).sum(), leaves[2])[0][1].any())


@pytest.mark.parametrize("order", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_both_derivatives_by_differences(order):
    u, gates, chosen, parts = made(dtype=torch.float64, experts=3)
    leaves = [t[:4].clone().requires_grad_() for t in (u, gates)] + [p.clone().requires_grad_() for p in parts]
    # fast: derivatives along a random direction, which any wrong entry would turn
    assert order(lambda u, g, *p: sorted_way(u, g, chosen[:4], p), leaves, fast_mode=True)


def test_the_grouped_product_of_torch_is_used_where_it_is_and_equals_the_loop(monkeypatch):
    u, gates, chosen, parts = made()
    calls = []
    if dispatch._grouped_mm is not None:
        real = dispatch._grouped_mm
        monkeypatch.setattr(dispatch, "_grouped_mm", lambda *a, **named: calls.append(1) or real(*a, **named))
    first = sorted_way(u, gates, chosen, parts)
    assert len(calls) == (2 if dispatch._grouped_mm is not None else 0)
    monkeypatch.setattr(dispatch, "_grouped_mm", None)  # an older torch
    assert_close(first, sorted_way(u, gates, chosen, parts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inputs", [7, 8])
def test_shapes_that_do_not_fit_go_through_the_loop(inputs):
    x, weight = torch.randn(6, inputs), torch.randn(3, 8, inputs)
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    expected = torch.cat([x[:2] @ weight[0].T, x[2:] @ weight[2].T])
    assert_close(grouped_linear(x, weight, ends), expected)


@pytest.mark.parametrize("experts", [3, 300])
def test_more_experts_than_a_byte_counts_are_sorted_too(experts):
    chosen = torch.randint(0, experts, (40, 2), generator=torch.Generator().manual_seed(0))
    found = sort_pairs(chosen, experts)
    assert found.expert.tolist() == sorted(chosen.flatten().tolist())
    assert torch.equal(chosen.T.reshape(-1)[found.order], found.expert)
    assert found.ends.tolist() == torch.bincount(chosen.flatten(), minlength=experts).cumsum(0).tolist()


@pytest.mark.parametrize(("t", "k", "experts"), [(1, 1, 1), (255, 1, 6), (256, 2, 6), (700, 3, 40), (300, 2, 90)])
@pytest.mark.parametrize("alone", [False, True])
def test_pairs_lie_as_a_stable_sort_lays_them(t, k, experts, alone):
    chosen = torch.rand(t, experts, generator=torch.Generator().manual_seed(t)).topk(k, -1).indices
    if alone:  # all on the same few
        chosen = chosen[:1].expand(t, k).contiguous()
    found = sort_pairs(chosen, experts)
    flat = chosen.T.reshape(-1).tolist()
    order = sorted(range(t * k), key=flat.__getitem__)
    assert found.order.tolist() == order
    assert found.token.tolist() == [pair % t for pair in order]
    assert found.expert.tolist() == [flat[pair] for pair in order]
    assert [order[place] for place in found.position.tolist()] == list(range(t * k))
    assert found.ends.tolist() == [sum(e <= i for e in flat) for i in range(experts)]
    assert (found.order.dtype, found.ends.dtype, found.within) == (torch.int64, torch.int32, None)
    assert_close(found.load(), torch.bincount(chosen.flatten(), minlength=experts) / (t * k))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, of its compiler
def test_compiled_it_is_the_same_in_values_and_gradients():
    u, gates, chosen, parts = made()
    narrow = [t.to(torch.bfloat16).requires_grad_() for t in (u, gates, *parts)]
    at = sort_pairs(chosen, E)

    def through(u, gates, *parts):
        return apply_experts(u, gates, at, parts, F.gelu)

    whole = torch.compile(through, backend="aot_eager", fullgraph=True)(*narrow)  # no break, so no count is waited for
    eager = through(*narrow)
    assert_close(whole, eager, rtol=0.05, atol=0.1)
    for a, b in zip(
        torch.autograd.grad(whole.sum(), narrow), torch.autograd.grad(eager.sum(), narrow), strict=True
    ):  # fmt: skip
        assert_close(a, b, rtol=0.05, atol=0.5)


def test_no_token_at_all():
    u, gates, chosen, parts = made()
    assert sorted_way(u[:0], gates[:0], chosen[:0], parts).shape == (0, D)


def test_pairs_stand_expert_after_expert_first_choices_first():
    chosen = torch.tensor([[0, 1], [1, 0], [0, 1]])
    found = sort_pairs(chosen, 3)
    assert found.token.tolist() == [0, 2, 1, 1, 0, 2]  # expert 0: first choices of 0 and 2, then the second of 1
    assert found.expert.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.ends.tolist() == [3, 6, 6]
    assert found.order[found.position].tolist() == list(range(6))
    assert found.within is None


def test_without_room_the_last_in_line_is_dropped_and_adds_nothing():
    chosen = torch.tensor([[0, 1], [1, 0], [0, 1]])
    found = sort_pairs(chosen, 2, first=torch.tensor([2, 1, 0]), capacity=2)
    assert found.token.tolist() == [2, 0, 1, 1, 2, 0]
    assert found.within.tolist() == [True, True, False, True, True, False]
    u, gates, _, parts = made(experts=2)
    gates = gates[:3].clone().requires_grad_()
    out = apply_experts(u[:3], gates, found, parts, F.gelu)
    less = gates.detach().clone()
    less[1, 1] = less[0, 1] = 0.0  # the pairs without room
    assert_close(out, naive(u[:3], less, chosen, parts), rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(out.sum(), gates)
    assert grad[1, 1] == grad[0, 1] == 0
    assert bool(grad[2].all())


def test_room_enough_changes_nothing():
    u, gates, chosen, parts = made()
    roomy = sorted_way(u, gates, chosen, parts, first=torch.randperm(T), capacity=2 * T)
    assert_close(roomy, sorted_way(u, gates, chosen, parts), rtol=1e-5, atol=1e-5)


def test_room_as_in_the_published_code():
    assert expert_capacity(64 * 197, 6, top=1, factor=1.5) == 3153
    assert expert_capacity(10, 4, top=2, factor=1.0) == 6


def test_every_token_through_every_expert_gives_the_same():
    generator = torch.Generator().manual_seed(0)
    u, up, down = (torch.randn(*shape, generator=generator) for shape in ((7, 4), (3, 8, 4), (3, 4, 8)))
    bias_up, bias_down = torch.randn(3, 8, generator=generator), torch.randn(3, 4, generator=generator)
    gates, chosen = torch.randn(7, 3, generator=generator).softmax(-1).topk(2, dim=-1)
    parts = (up, bias_up, down, bias_down)
    sparse = apply_experts(u, gates, sort_pairs(chosen, 3), parts, torch.tanh, loop=True)
    assert_close(apply_all_experts(u, gates, chosen, parts, torch.tanh), sparse)
