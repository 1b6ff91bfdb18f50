"""Balance losses: squared coefficients of variation of the experts' importance and load.

t tokens, e experts, k chosen
"""

from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.ops.routing import Routing


class Config(NamedTuple):
    """Choice and balance losses of a layer; `weight` is 0 if nobody reads the losses."""

    top: int
    gate: str
    noise: float  # standard deviation
    weight: float
    sigma: float
    form: str


def importance(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the softmax of the scores (t, e) summed over tokens (e,); the mask (t,) selects the tokens that count."""
    return _sum_tokens(scores.softmax(dim=-1), mask)


def load(routing: Routing, *, sigma: float, form: str = "logit", mask: Tensor | None = None) -> Tensor:
    """Return the probability that an expert is among the top k when its noise is drawn again, summed over tokens (e,).

    p_e = Phi((score_e - k-th largest noisy score) / sigma), with clean scores. The form `tutel` uses softmax
    probabilities in place of the clean scores, as that library does, and so compares two scales.
    """
    threshold = routing.noisy.gather(1, routing.chosen[:, -1:])  # (t, 1)
    score = routing.clean if form == "logit" else routing.clean.softmax(dim=-1)
    return _sum_tokens(torch.special.ndtr((score - threshold) / sigma), mask)


def squared_variation(amounts: Tensor, *, unbiased: bool = False) -> Tensor:
    """Return (std / mean)^2 of a vector; it is 0 for a single expert."""
    return amounts.var(unbiased=unbiased and len(amounts) > 1) / (amounts.mean().square() + 1e-10)


def weighted_balance(routing: Routing, config: Config, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weighted sum of both losses, and without gradient both losses and shares of importance (e,).

    The form `tutel` also divides the variance by e - 1, which makes the losses larger by e / (e - 1).
    """
    amounts = importance(routing.clean, mask)
    loads = load(routing, sigma=config.sigma, form=config.form, mask=mask)
    first, second = (squared_variation(x, unbiased=config.form == "tutel") for x in (amounts, loads))
    return config.weight * (first + second), first.detach(), second.detach(), (amounts / amounts.sum()).detach()


def _sum_tokens(values: Tensor, mask: Tensor | None) -> Tensor:
    return values.sum(dim=0) if mask is None else (values * mask[:, None]).sum(dim=0)
