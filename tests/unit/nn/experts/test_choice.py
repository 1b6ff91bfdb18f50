"""Scores, choices and gates: the naive ones in values and both derivatives."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from holdfast.nn.experts.router import (
    MAX_SCALE,
    CosineRouter,
    RouterProducts,
    choose,
    cosine_scores,
    folded_scores,
    route,
)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("t", "e", "q"), [(1, 1, 5), (37, 6, 256), (70, 20, 300)])
def test_cosines_are_those_of_directions(same, t, e, q):
    query, directions = drawn(t, q), 0.1 * drawn(e, q, seed=1)
    dots, log_scale = query @ directions.T, torch.tensor(0.7)

    def naive(dots, query, directions, log_scale):
        lengths = query.square().sum(-1, keepdim=True).sqrt() * directions.square().sum(-1).sqrt()
        return (log_scale.exp() * dots / lengths,)

    found = cosine_scores(dots.requires_grad_(), query, directions, log_scale)
    wanted = F.cosine_similarity(query[:, None], directions[None], dim=-1) * math.exp(0.7)
    torch.testing.assert_close(found.detach(), wanted, rtol=1e-4, atol=1e-5)
    same(lambda *parts: (cosine_scores(*parts),), naive, (dots, query, directions, log_scale))


def test_a_scale_at_its_limit_moves_no_more_and_a_length_of_nothing_divides_nothing():
    query, directions = drawn(4, 8), drawn(3, 8, seed=2)
    query[1] = directions[2] = 0
    parts = drawn(4, 3), query, directions, torch.tensor(9.0)
    for each in parts:
        each.requires_grad_()
    found = cosine_scores(*parts)
    expected = MAX_SCALE * parts[0][0, :2] / query[0].norm() / directions[:2].norm(dim=-1)
    torch.testing.assert_close(found[0, :2], expected)
    _, by_query, by_directions, by_scale = torch.autograd.grad(found[:, :2].sum(), parts)
    assert by_scale == 0
    assert not by_query[1].any()
    assert not by_directions[2].any()
    assert by_query[0].any()
    assert by_directions[0].any()


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("t", "e", "k"), [(1, 6, 1), (37, 6, 2), (300, 5, 3), (40, 64, 4), (3, 1, 1)])
def test_choices_are_those_of_a_sort(same, t, e, k, renormalise):
    clean, noise = drawn(t, e), drawn(t, e, seed=1)
    if t > 1 and e > 1:
        clean[1] = torch.tensor([3.0] * 2 + [0.0] * (e - 2))
        noise[1] = 0.0  # of equal ones the first comes first

    def naive(clean):
        noisy = clean + 0.25 * noise
        chosen = noisy.argsort(dim=-1, descending=True, stable=True)[:, :k]
        gates = noisy.softmax(dim=-1).gather(1, chosen)
        return noisy, chosen, gates / gates.sum(-1, keepdim=True) if renormalise else gates

    def mine(clean):
        return choose(clean, noise, sigma=0.25, top=k, renormalise=renormalise)

    chosen = mine(clean)[1]
    assert torch.equal(chosen, naive(clean)[1])
    assert chosen.dtype == torch.int64
    same(mine, naive, (clean,))
    same(lambda clean: mine(clean)[2:], lambda clean: naive(clean)[2:], (clean,))
    without = choose(clean, None, sigma=0.0, top=k, renormalise=renormalise)
    assert without[0] is clean
    assert torch.equal(without[1], clean.argsort(dim=-1, descending=True, stable=True)[:, :k])


def test_what_is_no_number_still_names_an_expert():
    clean = torch.full((3, 5), math.nan)
    clean[1, :4] = 0.0
    chosen = choose(clean, None, sigma=0.0, top=2, renormalise=True)[1]
    assert int(chosen.min()) >= 0
    assert int(chosen.max()) < 5
    assert int(chosen[1, 0]) == 4


@pytest.mark.parametrize("experts", [6, 16])
def test_a_length_of_narrow_products_moves_the_scores_little_and_no_choice(experts):
    torch.manual_seed(0)
    router, u = CosineRouter(32, experts, inner=64), torch.randn(5, 100, 32, requires_grad=True)
    with torch.no_grad():
        router.project.bias.normal_()
    exact = route(router, u, top=2, renormalise=True, noise=0.0)
    narrow = route(router, u, top=2, renormalise=True, noise=0.0, narrow=u.bfloat16())
    assert narrow.clean.dtype == torch.float32
    assert torch.equal(narrow.chosen, exact.chosen)
    torch.testing.assert_close(narrow.clean, exact.clean, rtol=3e-3, atol=1e-5)
    parts = (u, *router.parameters())
    for a, b in zip(*(torch.autograd.grad(r.gates[:, 0].sum(), parts) for r in (narrow, exact)), strict=True):
        assert a.dtype == b.dtype
        assert float((a - b).abs().max()) <= 0.02 * float(b.abs().max())


def test_products_have_both_derivatives_of_plain_ones(same):
    shapes = [(3, 7, 5), (9, 5), (9,), (6, 5), (6,)]
    parts = [drawn(*shape, seed=i) for i, shape in enumerate(shapes)]

    def naive(u, weight, bias, folded, folded_bias):
        return u @ weight.T + bias, u @ folded.T + folded_bias

    same(lambda u, *rest: RouterProducts.apply(u.detach(), u, *rest), naive, parts)


@pytest.mark.parametrize(("t", "e", "q", "d"), [(1, 1, 5, 8), (33, 6, 64, 24), (70, 20, 37, 72), (9, 40, 16, 8)])
def test_scores_of_tokens_are_cosines_in_values_and_both_derivatives(same, t, e, q, d):
    shapes = [(2, t, d), (q, d), (q,), (e, q)]
    parts = [drawn(*shape, seed=i) for i, shape in enumerate(shapes)]
    parts = [*parts, torch.tensor(0.7)]

    def naive(u, weight, bias, directions, log_scale):
        query = u @ weight.T + bias
        lengths = query.square().sum(-1, keepdim=True).sqrt() * directions.square().sum(-1).sqrt()
        return (log_scale.exp() * (query @ directions.T) / lengths,)

    def mine(u, *rest):
        return (folded_scores(u.detach(), u, *rest),)

    same(mine, naive, parts, close=1e-4)


def test_scores_of_narrow_tokens_are_rounded_and_no_more():
    parts = [drawn(*shape, seed=i) for i, shape in enumerate([(50, 24), (64, 24), (64,), (6, 64)])]
    parts = [part.requires_grad_() for part in (*parts, torch.tensor(0.7))]
    exact = folded_scores(parts[0].detach(), *parts)
    found = folded_scores(parts[0].detach(), parts[0].bfloat16(), *parts[1:])
    weights = drawn(50, 6, seed=9)
    grads = (torch.autograd.grad((each * weights).sum(), parts) for each in (found, exact))
    for a, b in [(found, exact), *zip(*grads, strict=True)]:
        assert a.dtype == torch.float32
        assert bool((a - b).detach().abs().max() <= 0.03 * b.detach().abs().max())
