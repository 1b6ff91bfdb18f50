"""Balance losses against the printed example, against writing them out, and in the form of Tutel."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.experts.balance import balance_losses, importance, load, squared_variation, weighted_balance
from holdfast.nn.experts.router import Routing

# Table 5 of the paper: importance is even, yet the second expert is never chosen
PRINTED = torch.tensor([[0.9, 0.4, 0.1, 0.2], [0.2, 0.4, 0.9, 0.1], [0.1, 0.4, 0.2, 0.9]])


def routing(clean, noisy=None, k=1):
    noisy = clean if noisy is None else noisy
    gates, chosen = noisy.softmax(-1).topk(k, -1)
    return Routing(clean, noisy, chosen, gates)


def test_the_printed_example():
    first, second, _ = balance_losses(routing(PRINTED), sigma=0.25)
    assert float(first) == pytest.approx(0.00082, abs=5e-6)
    assert float(second) == pytest.approx(0.228, abs=5e-4)
    amounts = load(routing(PRINTED), sigma=0.25)
    assert int(amounts.argmin()) == 1


def test_written_out_with_noise():
    chance = torch.Generator().manual_seed(0)
    clean = torch.randn(9, 5, generator=chance)
    found = routing(clean, clean + 0.2 * torch.randn(9, 5, generator=chance), k=2)
    normal = NormalDist(0, 0.2)
    by_hand = torch.zeros(5)
    for i in range(9):
        threshold = sorted(found.noisy[i].tolist(), reverse=True)[1]
        for e in range(5):
            by_hand[e] += 1 - normal.cdf(threshold - float(clean[i, e]))
    assert_close(load(found, sigma=0.2), by_hand)
    assert_close(importance(found.clean), clean.softmax(-1).sum(0))
    amounts = by_hand.tolist()
    mean = sum(amounts) / 5
    spread = math.fsum((a - mean) ** 2 for a in amounts) / 5
    assert float(balance_losses(found, sigma=0.2)[1]) == pytest.approx(spread / mean**2, rel=1e-5)


def test_even_routing_costs_nothing():
    clean = 3 * torch.eye(4).repeat(5, 1)
    first, second, _ = balance_losses(routing(clean), sigma=0.25)
    assert float(first) == pytest.approx(0, abs=1e-9)
    assert float(second) == pytest.approx(0, abs=1e-9)


def test_tutel_mixes_two_scales_and_is_nearly_still():
    chance = torch.Generator().manual_seed(0)
    clean = torch.nn.functional.normalize(torch.randn(400, 6, generator=chance), dim=-1)
    found = routing(clean, clean + torch.randn(400, 6, generator=chance) / 6)
    own, tutel = (balance_losses(found, sigma=1 / 6, form=form) for form in ("logit", "tutel"))
    assert float(tutel[0]) == pytest.approx(1.2 * float(own[0]), rel=1e-4)  # 6 / 5
    threshold = found.noisy.amax(-1, keepdim=True)
    by_hand = torch.special.ndtr((clean.softmax(-1) - threshold) * 6).sum(0)
    assert_close(tutel[1], squared_variation(by_hand, unbiased=True))
    with pytest.raises(BadInput, match="form of the balance loss"):
        balance_losses(found, sigma=1 / 6, form="tutle")
    with pytest.raises(BadInput, match="form of the balance loss"):
        weighted_balance(found, weight=1.0, sigma=1 / 6, form="tutle", detach=False, mask=None)


def test_gradients_reach_the_scores_through_both_and_the_threshold_can_be_taken_as_given():
    clean = PRINTED.clone().requires_grad_()
    for which in (0, 1):
        (grad,) = torch.autograd.grad(balance_losses(routing(clean), sigma=0.25)[which], clean)
        assert bool(grad.any())
    learns, given = (
        torch.autograd.grad(balance_losses(routing(clean), sigma=0.25, detach=flag)[1], clean)[0]
        for flag in (False, True)
    )
    assert not torch.allclose(learns, given)


def test_padding_does_not_count():
    more = torch.cat([PRINTED, torch.full((4, 4), 7.0)])
    real = torch.tensor([True] * 3 + [False] * 4)
    for a, b in zip(
        balance_losses(routing(more), sigma=0.25, mask=real), balance_losses(routing(PRINTED), sigma=0.25), strict=True
    ):
        assert_close(a, b)


@pytest.mark.parametrize("form", ["logit", "tutel"])
@pytest.mark.parametrize(("t", "e", "k"), [(1, 4, 1), (37, 6, 2), (300, 5, 3)])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_losses_and_both_derivatives_are_the_naive_ones(same, form, t, e, k, detach, padded):
    chance = torch.Generator().manual_seed(0)
    clean, added = (torch.randn(t, e, generator=chance) for _ in range(2))
    noisy = clean + 0.2 * added
    chosen = noisy.topk(k, -1).indices
    real = (torch.arange(t) % 3 != 1) if padded else None
    counts = torch.ones(t, 1) if real is None else real[:, None]

    def naive(clean, noisy):
        share = clean.softmax(-1)
        threshold = noisy.gather(1, chosen[:, -1:])
        apart = (clean if form == "logit" else share) - (threshold.detach() if detach else threshold)
        chances = (1 + torch.erf(apart / 0.5 / math.sqrt(2))) / 2
        amounts = [(each * counts).sum(0) for each in (share, chances)]
        below = e if form == "logit" else e - 1
        first, second = (((a - a.mean()) ** 2).sum() / below / (a.mean() ** 2 + 1e-10) for a in amounts)
        shares = (amounts[0] / amounts[0].sum()).detach()
        return 0.25 * (first + second), first.detach(), second.detach(), shares

    def mine(clean, noisy):
        routing = Routing(clean, noisy, chosen, clean.gather(1, chosen))
        return weighted_balance(routing, weight=0.25, sigma=0.5, form=form, detach=detach, mask=real)

    _, *rest = mine(clean.requires_grad_(), noisy)
    assert not any(each.requires_grad for each in rest)
    same(mine, naive, (clean, noisy), close=1e-4)
