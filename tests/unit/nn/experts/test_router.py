"""Routers: their equations, their bounds, their noise, and that they stay in fp32."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.experts.router import CosineRouter, LinearRouter, RandomRouter, make_router, route

U = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))


def cosine(**options) -> CosineRouter:
    torch.manual_seed(0)
    return CosineRouter(6, 4, inner=5, **options)


def test_cosine_is_its_equation():
    made = cosine(temperature=0.25)
    query = U @ made.project.weight.T + made.project.bias
    each = torch.nn.functional.cosine_similarity(query[:, None], made.directions[None], dim=-1)
    assert_close(made(U), 4.0 * each)


def test_cosine_looks_at_directions_alone_and_is_bounded():
    made = cosine()
    with torch.no_grad():
        made.project.bias.zero_()
        scores = made(U)
        assert_close(made(5 * U), scores)
        made.directions.mul_(7)
        assert_close(made(U), scores)
        assert float(scores.abs().max()) <= 2.0
        made.log_scale.fill_(math.log(1e6))
        assert_close(made(U), 50 * scores)  # from 2 to 100 and no further


def test_the_temperature_learns_unless_it_is_said_not_to():
    assert "log_scale" in dict(cosine().named_parameters())
    fixed = cosine(learned=False)
    assert "log_scale" not in dict(fixed.named_parameters())
    assert "log_scale" in fixed.state_dict()
    assert_close(fixed(U), cosine()(U))


def test_linear_is_its_equation():
    torch.manual_seed(0)
    made = LinearRouter(6, 4)
    assert made.project.bias is None
    assert_close(made(U), U @ made.project.weight.T)


def test_random_knows_the_place_alone_and_never_learns():
    torch.manual_seed(0)
    made = RandomRouter(4)
    assert not list(made.parameters())
    rows = U[None].repeat(3, 1, 1)
    scores = made(rows)
    assert scores.shape == (3, 7, 4)
    assert torch.equal(made(torch.randn_like(rows)), scores)  # what a token says changes nothing
    assert torch.equal(made(rows[:1, :3]), scores[:1, :3])  # nor do the tokens beside it
    assert len({tuple(row) for row in scores[0].tolist()}) == 7
    chosen = route(made, torch.zeros(1, 1000, 6), top=1, renormalise=True, noise=0.0).chosen
    assert torch.bincount(chosen[:, 0], minlength=4).min() > 180  # about as many to each
    assert torch.equal(made(torch.zeros(1021 + 2, 6))[:2], made(torch.zeros(1021 + 2, 6))[1021:])


@pytest.mark.parametrize("k", [1, 2, 4, 5, 6])
def test_the_best_are_those_of_a_sort(k):
    chance = torch.Generator().manual_seed(1)
    scores = torch.randn(50, 6, generator=chance)
    found = route(torch.nn.Identity(), scores, top=k, renormalise=False, noise=0.0)
    best = scores.softmax(-1).sort(dim=-1, descending=True)
    assert torch.equal(found.chosen, best.indices[:, :k])
    assert_close(found.gates, best.values[:, :k])


def test_gates_as_they_are_or_renormalised():
    made = cosine()
    scores = made(U).softmax(-1)
    raw, whole = (route(made, U, top=2, renormalise=flag, noise=0.0) for flag in (False, True))
    best = scores.sort(dim=-1, descending=True)
    assert torch.equal(raw.chosen, best.indices[:, :2])
    assert_close(raw.gates, best.values[:, :2])
    assert_close(whole.gates.sum(-1), torch.ones(7))
    assert_close(whole.gates, raw.gates / raw.gates.sum(-1, keepdim=True))
    assert raw.noisy is raw.clean


def test_noise_is_seeded_and_as_wide_as_it_says():
    made, u = cosine(), U.repeat(600, 1)
    torch.manual_seed(3)
    first = route(made, u, top=1, renormalise=False, noise=0.25)
    torch.manual_seed(3)
    again = route(made, u, top=1, renormalise=False, noise=0.25)
    assert torch.equal(first.noisy, again.noisy)
    added = (first.noisy - first.clean).detach()
    assert float(added.std()) == pytest.approx(0.25, rel=0.03)
    assert float(added.mean()) == pytest.approx(0.0, abs=0.01)
    assert torch.equal(first.chosen[:, 0], first.noisy.argmax(-1))


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_fp32_under_autocast_and_with_narrow_weights(kind):
    made = make_router(kind, 6, 4, inner=5, temperature=0.5, learned=True)
    plain = route(made, U, top=2, renormalise=True, noise=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = route(made, U, top=2, renormalise=True, noise=0.0)
    assert torch.equal(plain.clean, under.clean)
    narrow = route(made.to(torch.bfloat16), U.to(torch.bfloat16), top=2, renormalise=True, noise=0.0)
    assert narrow.clean.dtype == narrow.gates.dtype == torch.float32


def test_wrong_settings_get_one_sentence():
    with pytest.raises(BadInput, match="router 'cosin'"):
        make_router("cosin", 6, 4, inner=5, temperature=0.5, learned=True)
    with pytest.raises(BadInput, match=r"temperature.*0\.01.*0\.001"):
        cosine(temperature=0.001)
