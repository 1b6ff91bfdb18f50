"""Balance losses equal the printed example and their equations, in both forms."""

import math

import pytest
import torch
from torch.testing import assert_close

from holdfast.nn.experts.router import Routing
from holdfast.ops.balance import Config, importance, load, squared_variation, weighted_balance

# Table 5 of the paper: importance is even, yet the second expert is never chosen
PRINTED = torch.tensor([[0.9, 0.4, 0.1, 0.2], [0.2, 0.4, 0.9, 0.1], [0.1, 0.4, 0.2, 0.9]])


def routing(clean, noisy=None, k=1):
    noisy = clean if noisy is None else noisy
    gates, chosen = noisy.softmax(-1).topk(k, -1)
    return Routing(clean, noisy, chosen, gates)


def balance_losses(result, *, sigma, form="logit", mask=None, weight=1.0):
    """Importance loss and load loss with their gradients."""
    clean, config = result.clean, Config(1, "renormalised", 0.0, weight, sigma, form)
    both, _, second, _ = weighted_balance(result, config, mask)
    first = squared_variation(importance(clean, mask), unbiased=form == "tutel")
    assert_close(both.detach(), weight * (first + second).detach())
    return first, both / weight - first


def test_printed_example():
    first, second = balance_losses(routing(PRINTED), sigma=0.25)
    assert float(first) == pytest.approx(0.00082, abs=5e-6)
    assert float(second) == pytest.approx(0.228, abs=5e-4)
    amounts = load(routing(PRINTED), sigma=0.25)
    assert int(amounts.argmin()) == 1


@pytest.mark.parametrize("form", ["logit", "tutel"])
@pytest.mark.parametrize(("t", "e", "k"), [(1, 4, 1), (37, 6, 2), (300, 5, 3)])
@pytest.mark.parametrize("padded", [False, True])
def test_losses_and_both_derivatives(assert_derivatives, form, t, e, k, padded):
    rng = torch.Generator().manual_seed(0)
    clean, noise = (torch.randn(t, e, generator=rng) for _ in range(2))
    noisy = clean + 0.2 * noise
    chosen = noisy.topk(k, -1).indices
    real = (torch.arange(t) % 3 != 1) if padded else None
    counts = torch.ones(t, 1) if real is None else real[:, None]

    def naive(clean, noisy):
        share = clean.softmax(-1)
        threshold = noisy.gather(1, chosen[:, -1:])
        margin = (clean if form == "logit" else share) - threshold
        probabilities = (1 + torch.erf(margin / 0.5 / math.sqrt(2))) / 2
        amounts = [(x * counts).sum(0) for x in (share, probabilities)]
        divisor = e if form == "logit" else e - 1
        first, second = (((a - a.mean()) ** 2).sum() / divisor / (a.mean() ** 2 + 1e-10) for a in amounts)
        shares = (amounts[0] / amounts[0].sum()).detach()
        return 0.25 * (first + second), first.detach(), second.detach(), shares

    def losses(clean, noisy):
        routing = Routing(clean, noisy, chosen, clean.gather(1, chosen))
        return weighted_balance(routing, Config(k, "renormalised", 0.0, 0.25, 0.5, form), real)

    _, *rest = losses(clean.requires_grad_(), noisy)
    assert not any(x.requires_grad for x in rest)
    assert_derivatives(losses, naive, (clean, noisy), tolerance=1e-4)
