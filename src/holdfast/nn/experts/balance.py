"""Losses that keep all experts in work: their importance and their load, each as a squared coefficient of variation.

t tokens, e experts, k chosen
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.errors import unknown
from holdfast.nn.experts.router import Routing

FORMS = ("logit", "tutel")


def importance(scores: Tensor, real: Tensor | None = None) -> Tensor:
    """(e,) the softmax of the scores (t, e) of all tokens, added up; `real` (t,) says which tokens count."""
    return _total(scores.softmax(dim=-1), real)


def load(
    routing: Routing, *, sigma: float, form: str = "logit", detach: bool = False, real: Tensor | None = None
) -> Tensor:
    """(e,) the chance that an expert stays among the k best if its own noise were drawn again, added up over tokens.

    p_e = Phi((score_e - the k-th best noisy score) / sigma), with clean scores. `tutel` sets softmax probabilities in
    the place of the clean scores, as that library does, and so compares two scales. `detach` takes the threshold as
    given.
    """
    threshold = routing.noisy.gather(1, routing.chosen[:, -1:])  # (t, 1)
    score = routing.clean if form == "logit" else routing.clean.softmax(dim=-1)
    apart = score - (threshold.detach() if detach else threshold)
    return _total(torch.special.ndtr(apart / sigma), real)


def variation(amounts: Tensor, *, unbiased: bool = False) -> Tensor:
    """(std / mean)^2 of a vector; a single expert is always in balance."""
    return amounts.var(unbiased=unbiased and len(amounts) > 1) / (amounts.mean().square() + 1e-10)


def balance(
    routing: Routing, *, sigma: float, form: str = "logit", detach: bool = False, real: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The two losses, and the importance (e,) without a gradient, which comes with them.

    `tutel` also takes the variance with e - 1, so that it is e / (e - 1) as large.
    """
    if form not in FORMS:
        raise unknown("form of the balance loss", form, FORMS)
    amounts, unbiased = importance(routing.clean, real), form == "tutel"
    second = load(routing, sigma=sigma, form=form, detach=detach, real=real)
    return variation(amounts, unbiased=unbiased), variation(second, unbiased=unbiased), amounts.detach()


def weighed(
    routing: Routing, *, weight: float, sigma: float, form: str, detach: bool, real: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`weight` times the sum of the losses; without a gradient both of them and the share of each in the importance."""
    first, second, amounts = balance(routing, sigma=sigma, form=form, detach=detach, real=real)
    return weight * (first + second), first.detach(), second.detach(), amounts / amounts.sum()


def _total(each: Tensor, real: Tensor | None) -> Tensor:
    return each.sum(dim=0) if real is None else (each * real[:, None]).sum(dim=0)
