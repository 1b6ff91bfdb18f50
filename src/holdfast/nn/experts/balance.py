"""Losses that keep all experts in work: their importance and their load, each as a squared coefficient of variation.

t tokens, e experts, k chosen
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from holdfast.core.errors import unknown
from holdfast.nn.experts.router import Routing
from holdfast.nn.kernels import kernels_unless_compiled, through_plain

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
) -> tuple[Tensor, Tensor, Tensor]:
    """The two losses, and the importance (e,) without a gradient, which comes with them.

    `tutel` also takes the variance with e - 1, so that it is e / (e - 1) as large.
    """
    _check(form)
    amounts, unbiased = importance(routing, real), form == "tutel"
    second = load(routing, sigma=sigma, form=form, detach=detach, real=real)
    return variation(amounts, unbiased=unbiased), variation(second, unbiased=unbiased), amounts.detach()


def weighed(
    routing: Routing, *, weight: float, sigma: float, form: str, detach: bool, real: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`weight` times the sum of the losses; without a gradient both of them and the share of each in the importance."""
    _check(form)
    fast = kernels_unless_compiled("routing", routing.clean)
    if fast is not None and routing.clean.shape[1] <= fast.MOST:
        how = weight, routing, real, sigma, form, detach
        return _Weighed.apply(routing.clean, routing.noisy, *how)  # pyright: ignore[reportReturnType]
    first, second, amounts = balance(routing, sigma=sigma, form=form, detach=detach, real=real)
    return weight * (first + second), first.detach(), second.detach(), amounts / amounts.sum()


def _check(form: str) -> None:
    if form not in FORMS:
        raise unknown("form of the balance loss", form, FORMS)


class _Weighed(torch.autograd.Function):
    """By kernels; a second derivative goes through plain tensors."""

    @staticmethod
    def forward(
        ctx: Any, clean: Tensor, noisy: Tensor, weight: float, routing: Routing, real: Tensor | None, sigma: float,
        form: str, detach: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        fast = kernels_unless_compiled("routing", clean)
        parts = clean.contiguous(), noisy.contiguous(), routing.chosen.contiguous(), real
        loss, first, second, shares, slopes = fast.balance(*parts, sigma=sigma, tutel=form == "tutel", weight=weight)
        ctx.save_for_backward(clean, noisy, slopes)
        ctx.how = weight, routing, real, sigma, form, detach
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(first, second, shares)
        return loss, first, second, shares

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        clean, noisy, slopes = ctx.saved_tensors
        weight, routing, real, sigma, form, detach = ctx.how
        if torch.is_grad_enabled():  # someone will differentiate this once more

            def plain(clean: Tensor, noisy: Tensor) -> Tensor:
                own = replace(routing, clean=clean, noisy=noisy)
                first, second, _ = balance(own, sigma=sigma, form=form, detach=detach, real=real)
                return weight * (first + second)

            found = through_plain(plain, (clean, noisy), ctx.needs_input_grad[:2], grads[:1])
        else:
            parts = clean.contiguous(), noisy.contiguous(), routing.chosen.contiguous(), real, slopes, grads[0]
            fast = kernels_unless_compiled("routing", clean)
            found = fast.balance_back(*parts, sigma=sigma, tutel=form == "tutel", detach=detach, weight=weight)
        return *found, *[None] * len(ctx.how)


def _total(each: Tensor, real: Tensor | None) -> Tensor:
    return each.sum(dim=0) if real is None else (each * real[:, None]).sum(dim=0)
