"""Dispatch by one sort equals every expert on every token, in values and both derivatives, also with a capacity."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from holdfast.ops import expert_dispatch as dispatch
from holdfast.ops.expert_dispatch import (
    apply_all_experts,
    apply_experts,
    expert_capacity,
    grouped_linear,
    sort_pairs,
)

T, D, H, E = 11, 8, 16, 5


def case(t=T, k=2, *, d=D, h=H, experts=E, dtype=torch.float32, same=False):
    """Tokens, gates, choices and weights; no token chooses the second expert; with `same` all choose the last first."""
    randn = partial(torch.randn, generator=torch.Generator().manual_seed(t + k), dtype=dtype)
    weights = randn(experts, h, d) / 6, randn(experts, h), randn(experts, d, h) / 12, randn(experts, d)
    scores = randn(t, experts)
    scores[:, 1] = -9.0
    if same:
        scores[:, -1] = 9.0
    gates, chosen = scores.softmax(-1).topk(k, -1)
    return randn(t, d), gates, chosen, weights


def naive(chosen, activation, u, gates, up, up_bias, down, down_bias):
    """Every expert on every token."""
    hidden = activation(torch.einsum("td,ehd->teh", u, up) + up_bias)
    y = torch.einsum("teh,edh->ted", hidden, down) + down_bias
    dense = torch.zeros(len(u), len(up), dtype=gates.dtype, device=u.device).scatter(1, chosen, gates)
    return (torch.einsum("te,ted->td", dense, y),)


def dispatched(chosen, activation, u, gates, *weights, loop=True, **options):
    with pytest.MonkeyPatch.context() as patch:
        if loop:
            patch.setattr(dispatch, "_grouped_mm", None)
        return (apply_experts(u, gates, sort_pairs(chosen, len(weights[0]), **options), weights, activation),)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize(
    ("t", "k", "same", "d", "h"),
    [
        (1, 1, False, 8, 16),
        (11, 4, True, 8, 16),
        (37, 1, True, 40, 136),
        (37, 2, False, 40, 136),
        (70, 3, True, 40, 136),
    ],
)
def test_values_and_both_derivatives(assert_derivatives, t, k, same, d, h, loop):
    u, gates, chosen, weights = case(t, k, d=d, h=h, same=same)
    function = partial(dispatched, chosen, F.gelu, loop=loop)
    if loop:  # the second derivative of the grouped product is torch's
        assert_derivatives(function, partial(naive, chosen, F.gelu), (u, gates, *weights))
    leaves, others = ([x.clone().requires_grad_() for x in (u, gates, *weights)] for _ in range(2))
    actual, expected = function(*leaves)[0], naive(chosen, F.gelu, *others)[0]
    assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    grads = torch.autograd.grad(actual.square().sum(), leaves)
    for a, b in zip(grads, torch.autograd.grad(expected.square().sum(), others), strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert not bool(grads[2][1].any())  # the expert without tokens


def test_another_activation_and_no_biases(assert_derivatives):
    u, gates, chosen, (up, up_bias, down, down_bias) = case(37)
    inputs = u, gates, up, up_bias, down, down_bias
    assert_derivatives(partial(dispatched, chosen, torch.tanh), partial(naive, chosen, torch.tanh), inputs)

    def without(u, gates, up, down):
        return dispatched(chosen, F.gelu, u, gates, up, None, down, None)

    def naive_without(u, gates, up, down):
        return naive(chosen, F.gelu, u, gates, up, 0.0, down, 0.0)

    assert_derivatives(without, naive_without, (u, gates, up, down))


@pytest.mark.parametrize("inputs", [7, 8])
def test_unaligned_shapes_use_the_loop(inputs):
    x, weight = torch.randn(6, inputs), torch.randn(3, 8, inputs)
    expected = torch.cat([x[:2] @ weight[0].T, x[2:] @ weight[2].T])
    assert_close(grouped_linear(x, weight, torch.tensor([2, 2, 6], dtype=torch.int32)), expected)


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize(
    ("t", "k", "experts"), [(1, 1, 1), (255, 1, 6), (256, 2, 6), (700, 3, 40), (300, 2, 90), (40, 2, 300)]
)
def test_stable_sort_by_expert(t, k, experts, same):
    chosen = torch.rand(t, experts, generator=torch.Generator().manual_seed(t)).topk(k, -1).indices
    if same:
        chosen = chosen[:1].expand(t, k).contiguous()
    pairs = sort_pairs(chosen, experts)
    flat = chosen.T.reshape(-1).tolist()
    order = sorted(range(t * k), key=flat.__getitem__)
    assert pairs.order.tolist() == order
    assert pairs.token.tolist() == [pair % t for pair in order]
    assert pairs.expert.tolist() == [flat[pair] for pair in order]
    assert [order[position] for position in pairs.position.tolist()] == list(range(t * k))
    assert pairs.ends.tolist() == torch.bincount(chosen.flatten(), minlength=experts).cumsum(0).tolist()
    assert (pairs.order.dtype, pairs.ends.dtype, pairs.within) == (torch.int64, torch.int32, None)
    assert_close(pairs.load(), torch.bincount(chosen.flatten(), minlength=experts) / (t * k))


def test_no_tokens():
    u, gates, chosen, weights = case()
    assert dispatched(chosen[:0], F.gelu, u[:0], gates[:0], *weights)[0].shape == (0, D)


def test_pairs_beyond_the_capacity_are_dropped():
    chosen = torch.tensor([[0, 1], [1, 0], [0, 1]])
    pairs = sort_pairs(chosen, 3)
    assert pairs.token.tolist() == [0, 2, 1, 1, 0, 2]  # expert 0: first choices of tokens 0 and 2, second of 1
    pairs = sort_pairs(chosen, 2, first=torch.tensor([2, 1, 0]), capacity=2)
    assert pairs.token.tolist() == [2, 0, 1, 1, 2, 0]
    assert pairs.within.tolist() == [True, True, False, True, True, False]
    u, gates, _, weights = case(experts=2)
    gates = gates[:3].clone().requires_grad_()
    out = apply_experts(u[:3], gates, pairs, weights, F.gelu)
    reduced = gates.detach().clone()
    reduced[1, 1] = reduced[0, 1] = 0.0
    assert_close(out, naive(chosen, F.gelu, u[:3], reduced, *weights)[0], rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(out.sum(), gates)
    assert grad[1, 1] == grad[0, 1] == 0
    assert bool(grad[2].all())


def test_derivatives_with_a_capacity(assert_derivatives):
    u, gates, chosen, weights = case(37)
    options = {"first": torch.arange(37), "capacity": 9}
    pairs = sort_pairs(chosen, E, **options)
    within = pairs.within[pairs.position].view(2, 37).T
    assert not bool(within.all())
    assert_derivatives(
        partial(dispatched, chosen, F.gelu, **options),
        lambda u, gates, *weights: naive(chosen, F.gelu, u, gates * within, *weights),
        (u, gates, *weights),
    )
    ample = dispatched(chosen, F.gelu, u, gates, *weights, first=torch.randperm(37), capacity=74)
    assert_close(ample, naive(chosen, F.gelu, u, gates, *weights), rtol=1e-4, atol=1e-5)


def test_capacity_of_the_published_code():
    assert expert_capacity(64 * 197, 6, top=1, factor=1.5) == 3153
    assert expert_capacity(10, 4, top=2, factor=1.0) == 6


def test_all_experts_on_every_token():
    u, gates, chosen, weights = case()
    expected = dispatched(chosen, torch.tanh, u, gates, *weights)[0]
    assert_close(apply_all_experts(u, gates, chosen, weights, torch.tanh), expected)
