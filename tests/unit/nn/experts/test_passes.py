"""Experts with what lies around their products, the naive sum, in values and derivatives."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from holdfast.nn.experts.dispatch import SumPairs, GatherPairs, sort_pairs, apply_experts

D, H, E = 40, 136, 5  # no multiples of a tile


def case(t, k, *, alone=False):
    chance = torch.Generator().manual_seed(t + k)
    draw = partial(torch.randn, generator=chance)
    scores = draw(t, E)
    scores[:, 1] = -9.0  # nobody chooses it
    if alone:
        scores[:, 3] = 9.0
    gates, chosen = scores.softmax(-1).topk(k, -1)
    parts = draw(E, H, D) / 6, draw(E, H), draw(E, D, H) / 12, draw(E, D)
    return [draw(t, D), gates, *parts], chosen


def naive(chosen, between, u, gates, up, up_bias, down, down_bias):
    """Every expert on every token."""
    hidden = between(torch.einsum("td,ehd->teh", u, up) + up_bias)
    each = torch.einsum("teh,edh->ted", hidden, down) + down_bias
    spread = torch.zeros(len(u), E, dtype=gates.dtype, device=u.device).scatter(1, chosen, gates)
    return (torch.einsum("te,ted->td", spread, each),)


def mine(chosen, between, u, gates, *parts):
    return (apply_experts(u, gates, sort_pairs(chosen, E), parts, between, loop=True),)


@pytest.mark.parametrize(("t", "k", "alone"), [(1, 1, False), (37, 1, True), (37, 2, False), (70, 3, True)])
def test_values_and_both_derivatives_are_the_naive_ones(same, t, k, alone):
    inputs, chosen = case(t, k, alone=alone)
    same(partial(mine, chosen, F.gelu), partial(naive, chosen, F.gelu), inputs)


def test_another_activation_and_no_biases(same):
    inputs, chosen = case(37, 2)
    same(partial(mine, chosen, torch.tanh), partial(naive, chosen, torch.tanh), inputs)
    u, gates, up, _, down, _ = inputs

    def bare(u, gates, up, down):
        return mine(chosen, F.gelu, u, gates, up, None, down, None)

    def naive_bare(u, gates, up, down):
        return naive(chosen, F.gelu, u, gates, up, 0.0, down, 0.0)

    same(bare, naive_bare, (u, gates, up, down))


def test_narrow_rows_with_wide_biases_are_rounded_and_no_more():
    inputs, chosen = case(70, 2)
    exact = [each.double().requires_grad_() for each in inputs]
    own = [inputs[i].to(torch.bfloat16 if i in (0, 2, 4) else torch.float32).requires_grad_() for i in range(6)]
    found, wanted = mine(chosen, F.gelu, *own)[0], naive(chosen, F.gelu, *exact)[0]
    assert found.dtype == torch.bfloat16
    pairs = zip(torch.autograd.grad(found.sum(), own), torch.autograd.grad(wanted.sum(), exact), strict=True)
    for (a, b), own_type in zip(
        [(found, wanted), *pairs], [torch.bfloat16, *(each.dtype for each in own)], strict=True
    ):
        assert a.dtype == own_type
        assert bool((a.detach().double() - b.detach()).abs().max() <= 0.03 * b.detach().abs().max())


def test_without_room_a_pair_adds_nothing_and_its_gate_learns_nothing(same):
    inputs, chosen = case(37, 2)
    first = torch.arange(37)
    at = sort_pairs(chosen, E, first=first, capacity=9)
    kept = at.within[at.position].view(2, 37).T
    assert not bool(kept.all())

    def roomy(u, gates, *parts):
        return (apply_experts(u, gates, at, parts, F.gelu, loop=True),)

    same(roomy, lambda u, gates, *parts: naive(chosen, F.gelu, u, gates * kept, *parts), inputs)


def test_gradients_are_the_same_every_time():
    inputs, chosen = case(70, 2)
    leaves = [each.requires_grad_() for each in inputs]
    once, again = (torch.autograd.grad(mine(chosen, F.gelu, *leaves)[0].sum(), leaves) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("k", [1, 2])
def test_rows_to_their_places_and_back(k):
    inputs, chosen = case(37, k)
    at = sort_pairs(chosen, E)
    x = GatherPairs.apply(inputs[0], at.token, at.position)
    assert torch.equal(x, inputs[0][at.token])
    torch.testing.assert_close(SumPairs.apply(x, at.token, at.position, 37), k * inputs[0])
