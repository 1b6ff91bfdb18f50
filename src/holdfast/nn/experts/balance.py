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
) -> tuple[Tensor, Tensor]:
    """The two losses; `tutel` also takes the variance with e - 1, so that it is e / (e - 1) as large."""
    return balance_and_importance(routing, sigma=sigma, form=form, detach=detach, real=real)[:2]


def balance_and_importance(
    routing: Routing, *, sigma: float, form: str, detach: bool, real: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and the importance (e,) without a gradient, which comes with them."""
    if form not in FORMS:
        raise unknown("form of the balance loss", form, FORMS)
    fast = kernels_unless_compiled("routing", routing.clean)
    if fast is None or routing.clean.shape[1] > fast.MOST:
        return _plain(routing, real, sigma, form, detach)
    how = routing, real, sigma, form, detach
    return _Balance.apply(routing.clean, routing.noisy, *how)  # pyright: ignore[reportReturnType]


def _plain(
    routing: Routing, real: Tensor | None, sigma: float, form: str, detach: bool
) -> tuple[Tensor, Tensor, Tensor]:
    amounts = importance(routing, real), load(routing, sigma=sigma, form=form, detach=detach, real=real)
    first, second = (variation(each, unbiased=form == "tutel") for each in amounts)
    return first, second, amounts[0].detach()


class _Balance(torch.autograd.Function):
    """By kernels; a second derivative goes through plain tensors."""

    @staticmethod
    def forward(
        ctx: Any, clean: Tensor, noisy: Tensor, routing: Routing, real: Tensor | None, sigma: float, form: str,
        detach: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        fast = kernels_unless_compiled("routing", clean)
        parts = clean.contiguous(), noisy.contiguous(), routing.chosen.contiguous(), real
        first, second, amounts, slopes = fast.balance(*parts, sigma=sigma, tutel=form == "tutel")
        ctx.save_for_backward(clean, noisy, slopes)
        ctx.how = routing, real, sigma, form, detach
        told = amounts[0]
        ctx.mark_non_differentiable(told)
        ctx.set_materialize_grads(False)
        return first, second, told

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        clean, noisy, slopes = ctx.saved_tensors
        routing, real, sigma, form, detach = ctx.how
        grads = tuple(slopes.new_zeros(()) if grad is None else grad for grad in grads[:2])
        if torch.is_grad_enabled():  # someone will differentiate this once more

            def plain(clean: Tensor, noisy: Tensor) -> tuple[Tensor, ...]:
                return _plain(replace(routing, clean=clean, noisy=noisy), *ctx.how[1:])[:2]

            found = through_plain(plain, (clean, noisy), ctx.needs_input_grad[:2], grads)
        else:
            parts = clean.contiguous(), noisy.contiguous(), routing.chosen.contiguous(), real, slopes, *grads
            fast = kernels_unless_compiled("routing", clean)
            found = fast.balance_back(*parts, sigma=sigma, tutel=form == "tutel", detach=detach)
        return *found, None, None, None, None, None


def _total(each: Tensor, real: Tensor | None) -> Tensor:
    return each.sum(dim=0) if real is None else (each * real[:, None]).sum(dim=0)
