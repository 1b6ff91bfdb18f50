"""From the products of a router to scores, and from scores to the k best and their gates: plainly, or by kernels.

t tokens, e experts, k chosen, q width in which the cosine is taken
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.nn.kernels import kernels_unless_compiled, through_plain

LARGEST = 100.0  # of the scale of a cosine: a temperature never falls below 0.01
FEW = 4  # so many best ones are found one after the other, which a GPU does sooner than a partial sort


def cosines(dots: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor) -> Tensor:
    """(..., e) scale dots / |query| / |direction|: dots (..., e), directions (e, q), and query (..., q) in any type.

    Dividing the e scores, and not the q numbers, keeps nothing more of that width for the way back.
    """
    fast = kernels_unless_compiled("cosine", dots)
    if fast is None or dots.shape[-1] > fast.MOST:
        return _cosines(dots, query, directions, log_scale)
    found = _Cosines.apply(dots.flatten(0, -2), query.flatten(0, -2), directions, log_scale)
    return found.view_as(dots)  # pyright: ignore[reportOptionalMemberAccess]


def narrow_scores(
    u: Tensor, narrow: Tensor, weight: Tensor, bias: Tensor, directions: Tensor, log_scale: Tensor
) -> Tensor:
    """(..., e) cosines of W u + b with each direction: its length of narrow products, E (W u + b) = (E W) u + E b."""
    fast = kernels_unless_compiled("folding", u)
    if fast is None or len(directions) > fast.MOST:
        query, dots = _products(u, narrow, weight, bias, directions)
        return cosines(dots, query, directions.float(), log_scale)
    return _Scores.apply(u, narrow, weight, bias, directions, log_scale)  # pyright: ignore[reportReturnType]


class Products(torch.autograd.Function):
    """What a cosine router multiplies tokens (..., d) by: weight (q, d) and bias in their narrow type, folded in fp32.

    `narrow` is u in that type, and what comes back to u comes through it, all of it narrow. The folded weight (e, d)
    has few columns on the way back, which is slow on a GPU; as many as fill 16 bytes are quick.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, narrow: Tensor, weight: Tensor, bias: Tensor, folded: Tensor, folded_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(narrow, weight, folded)
        return F.linear(narrow, weight, bias), F.linear(u, folded, folded_bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        narrow, weight, folded = ctx.saved_tensors
        by_query, by_dots = (grad.flatten(0, -2) for grad in grads)
        rows, e = narrow.flatten(0, -2), len(folded)
        wide = F.pad(by_dots.to(rows.dtype), (0, -e % 8))  # (t, e or a little more)
        by_rows = (by_query @ weight).addmm_(wide, F.pad(folded.to(rows.dtype), (0, 0, 0, -e % 8)))
        by_folded = (wide.T @ rows)[:e].to(folded.dtype)
        by_narrow = by_rows.view_as(narrow), by_query.T @ rows, by_query.sum(dim=0)
        return None, *by_narrow, by_folded, by_dots.sum(dim=0)


def choose(
    clean: Tensor, drawn: Tensor | None, *, noise: float, top: int, renormalise: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with noise (t, e), which of them are the k best (t, k), the best first, and their gates (t, k)."""
    fast = kernels_unless_compiled("routing", clean)
    if fast is not None and clean.shape[1] <= fast.MOST and top <= FEW:
        found = _Choice.apply(clean, drawn, noise, top, renormalise)
        noisy, chosen, gates = found  # pyright: ignore[reportGeneralTypeIssues]
        return clean if drawn is None else noisy, chosen, gates
    noisy = clean if drawn is None else clean + noise * drawn
    chosen = _best(noisy.detach(), top)
    return noisy, chosen, _gates(noisy, chosen, renormalise)


class _Cosines(torch.autograd.Function):
    """By kernels; a second derivative goes through plain tensors."""

    @staticmethod
    def forward(ctx: Any, dots: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor) -> Tensor:
        fast = kernels_unless_compiled("cosine", dots)
        parts = dots.contiguous(), query.contiguous(), directions.contiguous(), log_scale
        scores, *sizes = fast.cosines(*parts, math.log(LARGEST))
        ctx.save_for_backward(dots, query, directions, log_scale, scores, *sizes)
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        dots, query, directions, log_scale, scores, *sizes = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone will differentiate this once more
            return through_plain(_cosines, (dots, query, directions, log_scale), ctx.needs_input_grad, grads)
        parts = scores, query.contiguous(), directions.contiguous(), log_scale, *sizes, grads[0].contiguous()
        return kernels_unless_compiled("cosine", dots).gradients(*parts, math.log(LARGEST))


class _Scores(torch.autograd.Function):
    """`narrow_scores` by kernels, where products of the query and of the dots on the way back are one."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, narrow: Tensor, weight: Tensor, bias: Tensor, directions: Tensor, log_scale: Tensor
    ) -> Tensor:
        rows, few = narrow.flatten(0, -2), (weight.contiguous(), bias.contiguous(), directions.contiguous())
        fast = kernels_unless_compiled("folding", u)
        folded, folded_bias, both, narrow_bias = fast.fold(*few, narrow.dtype)
        query = F.linear(rows, both[: len(weight)], narrow_bias)  # (t, q)
        dots = F.linear(u.flatten(0, -2), folded, folded_bias)  # (t, e)
        fast = kernels_unless_compiled("cosine", dots)
        scores, *sizes = fast.cosines(dots, query, few[2], log_scale, math.log(LARGEST))
        ctx.save_for_backward(narrow, weight, bias, directions, log_scale, both, query, scores, *sizes)
        return scores.view(*narrow.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        *inputs, both, query, scores, lengths, sizes = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone will differentiate this once more
            return None, *through_plain(_narrow_scores, inputs, ctx.needs_input_grad[1:], grads)
        narrow, weight, bias, directions, log_scale = inputs
        rows, largest = narrow.flatten(0, -2), math.log(LARGEST)
        parts = log_scale, lengths, sizes, grads[0].reshape(scores.shape).contiguous()
        joined, sums = kernels_unless_compiled("cosine", scores).joined_gradients(scores, query, *parts, largest)
        few = weight.contiguous(), bias.contiguous(), directions.contiguous(), log_scale
        found = kernels_unless_compiled("folding", scores).unfold(*few, sizes, sums, joined.T @ rows, largest)
        return None, (joined @ both).view_as(narrow), *found


class _Choice(torch.autograd.Function):
    """The same of noise, choice and gates; without noise the first output is empty."""

    @staticmethod
    def forward(
        ctx: Any, clean: Tensor, drawn: Tensor | None, noise: float, top: int, renormalise: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        fast = kernels_unless_compiled("routing", clean)
        noisy, chosen, gates = fast.choose(clean.contiguous(), drawn, noise=noise, top=top, renormalise=renormalise)
        ctx.save_for_backward(clean if drawn is None else noisy, chosen)
        ctx.renormalise = renormalise
        ctx.mark_non_differentiable(chosen)
        ctx.set_materialize_grads(False)
        return clean.new_empty(0) if drawn is None else noisy, chosen, gates

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (noisy, chosen), (by_noisy, _, by_gates) = ctx.saved_tensors, grads
        if by_gates is None:
            by_clean = by_noisy
        elif torch.is_grad_enabled():
            (by_clean, _, _) = through_plain(
                _gates, (noisy, chosen, ctx.renormalise), (True, False, False), (by_gates,)
            )
            by_clean = by_clean if by_noisy is None else by_clean + by_noisy
        else:
            by_noisy = None if by_noisy is None else by_noisy.contiguous()
            fast = kernels_unless_compiled("routing", noisy)
            by_clean = fast.choose_back(
                noisy.contiguous(), chosen, by_noisy, by_gates.contiguous(), renormalise=ctx.renormalise
            )
        return by_clean, None, None, None, None


def _narrow_scores(narrow: Tensor, weight: Tensor, bias: Tensor, directions: Tensor, log_scale: Tensor) -> Tensor:
    """Plainly, from what the kernels keep of the tokens."""
    query, dots = _products(narrow.detach().float(), narrow, weight, bias, directions)
    return _cosines(dots, query, directions.float(), log_scale)


def _products(u: Tensor, narrow: Tensor, weight: Tensor, bias: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    directions = directions.float()
    folded = directions @ weight.float(), directions @ bias.float()
    return Products.apply(u, narrow, weight.to(narrow.dtype), bias.to(narrow.dtype), *folded)  # pyright: ignore[reportReturnType]


def _cosines(dots: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor) -> Tensor:
    scale = log_scale.float().clamp(max=math.log(LARGEST)).exp()
    lengths = [x.float().norm(dim=-1).clamp_min(1e-12) for x in (query, directions)]
    return dots * (scale / lengths[1]) / lengths[0][..., None]


def _gates(noisy: Tensor, chosen: Tensor, renormalise: bool) -> Tensor:
    gates = noisy.softmax(dim=-1).gather(1, chosen)
    return gates / gates.sum(dim=-1, keepdim=True) if renormalise else gates


def _best(scores: Tensor, k: int) -> Tensor:
    """(t, k) where the k best scores of each row are, the best first."""
    if k > FEW:
        return scores.topk(k, dim=-1).indices
    found: list[Tensor] = []
    for _ in range(k):
        if found:
            scores = scores.scatter(1, found[-1], -math.inf)
        found.append(scores.argmax(dim=-1, keepdim=True))
    return found[0] if k == 1 else torch.cat(found, dim=1)
