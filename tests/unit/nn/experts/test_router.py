"""Routers: scores, choices, gates and noise equal their equations, in values and both derivatives, and stay in fp32."""

import math

import pytest
import torch
from torch.testing import assert_close

from holdfast.nn.experts.router import POSITIONS, CosineRouter, RandomRouter, make_router, route
from holdfast.ops.routing import GATES, MAX_SCALE, choose, cosine_scores, folded_scores

U = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cosine(**options) -> CosineRouter:
    torch.manual_seed(0)
    return CosineRouter(6, 4, inner=5, **options)


def test_cosine_scores_depend_on_directions_and_are_bounded():
    router = cosine(temperature=0.5)
    with torch.no_grad():
        router.project.bias.zero_()
        scores = router(U)
        assert_close(router(5 * U), scores)
        router.directions.mul_(7)
        assert_close(router(U), scores)
        assert float(scores.abs().max()) <= 2.0
        router.log_scale.fill_(math.log(1e6))
        assert_close(router(U), 50 * scores)  # from 2 to the maximum of 100


def test_random_router_depends_on_the_position_only():
    torch.manual_seed(0)
    router = RandomRouter(4)
    assert not list(router.parameters())
    rows = U[None].repeat(3, 1, 1)
    scores = router(rows)
    assert scores.shape == (3, 7, 4)
    assert torch.equal(router(torch.randn_like(rows)), scores)
    assert torch.equal(router(rows[:1, :3]), scores[:1, :3])
    assert len({tuple(row) for row in scores[0].tolist()}) == 7
    chosen = route(router, torch.zeros(1, 1000, 6), top=1, gate="renormalised", noise=0.0).chosen
    assert torch.bincount(chosen[:, 0], minlength=4).min() > 180
    long = router(torch.zeros(POSITIONS + 2, 6))
    assert torch.equal(long[:2], long[POSITIONS:])


@pytest.mark.parametrize("kind", ["hash", "random-matched"])
def test_content_decides_whatever_the_batch_and_the_order(kind):
    """Also for tokens that differ by rounding, as products do with another batch size."""
    torch.manual_seed(0)
    router = make_router(kind, 6, 4, inner=5, temperature=0.5)
    u = randn(8, 100, 6, seed=1)
    scores = router(u)
    assert torch.equal(router(u[3:5, 20:]), scores[3:5, 20:])
    assert torch.equal(router(u.flip(1)), scores.flip(1))
    assert torch.equal(router(u * (1 + 1e-7 * randn(8, 100, 6, seed=2))), scores)
    chosen = route(router, u, top=1, gate="raw", noise=0.0).chosen
    assert torch.bincount(chosen[:, 0], minlength=4).min() > (150 if kind == "hash" else 20)
    assert bool(list(router.parameters())) == (kind == "random-matched")


def test_noise_is_seeded_and_has_the_given_deviation():
    router, u, runs = cosine(), U.repeat(600, 1), []
    for _ in range(2):
        torch.manual_seed(3)
        runs.append(route(router, u, top=1, gate="raw", noise=0.25))
    assert torch.equal(runs[0].noisy, runs[1].noisy)
    noise = (runs[0].noisy - runs[0].clean).detach()
    assert float(noise.std()) == pytest.approx(0.25, rel=0.03)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)
    assert torch.equal(runs[0].chosen[:, 0], runs[0].noisy.argmax(-1))


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_fp32_under_autocast_and_with_bf16_weights(kind):
    router = make_router(kind, 6, 4, inner=5, temperature=0.5)
    plain = route(router, U, top=2, gate="renormalised", noise=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = route(router, U, top=2, gate="renormalised", noise=0.0)
    assert torch.equal(plain.clean, under.clean)
    narrow = route(router.to(torch.bfloat16), U.to(torch.bfloat16), top=2, gate="renormalised", noise=0.0)
    assert narrow.clean.dtype == narrow.gates.dtype == torch.float32


def naive_cosine(dots, query, directions, log_scale):
    lengths = query.square().sum(-1, keepdim=True).sqrt() * directions.square().sum(-1).sqrt()
    return (log_scale.exp() * dots / lengths,)


def test_scale_at_its_limit_and_zero_norms():
    query, directions = randn(4, 8), randn(3, 8, seed=2)
    query[1] = directions[2] = 0
    inputs = [tensor.requires_grad_() for tensor in (randn(4, 3), query, directions, torch.tensor(9.0))]
    scores = cosine_scores(*inputs)
    expected = MAX_SCALE * inputs[0][0, :2] / query[0].norm() / directions[:2].norm(dim=-1)
    assert_close(scores[0, :2], expected)
    _, by_query, by_directions, by_scale = torch.autograd.grad(scores[:, :2].sum(), inputs)
    assert by_scale == 0
    assert by_query.any(dim=1).tolist()[:2] == [True, False]
    assert by_directions.any(dim=1).tolist() == [True, True, False]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("t", "e", "k"), [(1, 6, 1), (37, 6, 2), (300, 5, 3), (40, 64, 4), (40, 6, 6), (3, 1, 1)])
def test_choices_equal_a_sort(assert_derivatives, t, e, k, gate):
    clean, noise = randn(t, e), randn(t, e, seed=1)
    if t > 1 and e > 1 and k <= 4:
        clean[1] = torch.tensor([3.0] * 2 + [0.0] * (e - 2))
        noise[1] = 0.0  # among equal scores the first wins

    def naive(clean):
        noisy = clean + 0.25 * noise
        chosen = noisy.argsort(dim=-1, descending=True, stable=True)[:, :k]
        gates = noisy.softmax(dim=-1).gather(1, chosen)
        total = gates.sum(-1, keepdim=True)
        return noisy, chosen, gates / {"raw": 1, "renormalised": total, "preserving": total.detach()}[gate]

    def chosen(clean):
        result = choose(clean, noise, sigma=0.25, top=k, gate=gate)
        return result.noisy, result.chosen, result.gates

    indices = chosen(clean)[1]
    assert torch.equal(indices, naive(clean)[1])
    assert indices.dtype == torch.int64
    assert_derivatives(chosen, naive, (clean,))
    assert_derivatives(lambda clean: chosen(clean)[2:], lambda clean: naive(clean)[2:], (clean,))
    without = choose(clean, None, sigma=0.0, top=k, gate=gate)
    assert without.noisy is clean
    assert torch.equal(without.chosen, clean.argsort(dim=-1, descending=True, stable=True)[:, :k])


def test_nan_scores_choose_an_existing_expert():
    clean = torch.full((3, 5), math.nan)
    clean[1, :4] = 0.0
    chosen = choose(clean, None, sigma=0.0, top=2, gate="renormalised").chosen
    assert 0 <= int(chosen.min()) <= int(chosen.max()) < 5
    assert int(chosen[1, 0]) == 4


@pytest.mark.parametrize("experts", [6, 16])
def test_norms_of_bf16_products_change_no_choice(experts):
    torch.manual_seed(0)
    router, u = CosineRouter(32, experts, inner=64), torch.randn(5, 100, 32, requires_grad=True)
    with torch.no_grad():
        router.project.bias.normal_()
    exact = route(router, u, top=2, gate="renormalised", noise=0.0)
    narrow = route(router, u, top=2, gate="renormalised", noise=0.0, narrow=u.bfloat16())
    assert narrow.clean.dtype == torch.float32
    assert torch.equal(narrow.chosen, exact.chosen)
    assert_close(narrow.clean, exact.clean, rtol=3e-3, atol=1e-5)
    leaves = (u, *router.parameters())
    for a, b in zip(*(torch.autograd.grad(r.gates[:, 0].sum(), leaves) for r in (narrow, exact)), strict=True):
        assert a.dtype == b.dtype
        assert float((a - b).abs().max()) <= 0.02 * float(b.abs().max())


@pytest.mark.parametrize(("t", "e", "q", "d"), [(1, 1, 5, 8), (33, 6, 64, 24), (70, 20, 37, 72), (9, 40, 16, 8)])
def test_folded_scores(assert_derivatives, t, e, q, d):
    inputs = [randn(*shape, seed=i) for i, shape in enumerate([(2, t, d), (q, d), (q,), (e, q)])]

    def naive(u, weight, bias, directions, log_scale):
        query = u @ weight.T + bias
        return naive_cosine(query @ directions.T, query, directions, log_scale)

    def folded(u, *rest):
        return (folded_scores(u.detach(), u, *rest),)

    assert_derivatives(folded, naive, [*inputs, torch.tensor(0.7)], tolerance=1e-4)
