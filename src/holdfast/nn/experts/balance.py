"""Losses that keep all experts in work: their importance and their load, each as a squared coefficient of variation.

t tokens, e experts, k chosen
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.errors import unknown
from holdfast.nn.experts.router import Routing

FORMS = ("logit", "tutel")


def importance(routing: Routing, real: Tensor | None = None) -> Tensor:
    """(e,) the softmax scores of all tokens, added up; `real` (t,) says which tokens count."""
    return _total(routing.clean.softmax(dim=-1), real)


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
    """(std / mean)^2 of a vector."""
    return amounts.var(unbiased=unbiased) / (amounts.mean().square() + 1e-10)


def balance(
    routing: Routing, *, sigma: float, form: str = "logit", detach: bool = False, real: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The two losses; `tutel` also takes the variance with e - 1, so that it is e / (e - 1) as large."""
    if form not in FORMS:
        raise unknown("form of the balance loss", form, FORMS)
    amounts = importance(routing, real), load(routing, sigma=sigma, form=form, detach=detach, real=real)
    first, second = (variation(each, unbiased=form == "tutel") for each in amounts)
    return first, second


def _total(each: Tensor, real: Tensor | None) -> Tensor:
    return each.sum(dim=0) if real is None else (each * real[:, None]).sum(dim=0)
