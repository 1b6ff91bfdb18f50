"""From the products of a router to scores, and from scores to the k best and their gates.

t tokens, e experts, k chosen, q width in which the cosine is taken
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = 100.0  # of the scale of a cosine: a temperature never falls below 0.01
FEW = 4  # so many best ones are found one after the other, which a GPU does sooner than a partial sort


def cosines(dots: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor) -> Tensor:
    """(..., e) scale dots / |query| / |direction|: dots (..., e), directions (e, q), and query (..., q) in any type.

    Dividing the e scores, and not the q numbers, keeps nothing more of that width for the way back.
    """
    scale = log_scale.float().clamp(max=math.log(LARGEST)).exp()
    lengths = [x.float().norm(dim=-1).clamp_min(1e-12) for x in (query, directions)]
    return dots * (scale / lengths[1]) / lengths[0][..., None]


def narrow_scores(
    u: Tensor, narrow: Tensor, weight: Tensor, bias: Tensor, directions: Tensor, log_scale: Tensor
) -> Tensor:
    """(..., e) cosines of W u + b with each direction: its length of narrow products, E (W u + b) = (E W) u + E b."""
    directions = directions.float()
    folded = directions @ weight.float(), directions @ bias.float()
    query, dots = Products.apply(u, narrow, weight.to(narrow.dtype), bias.to(narrow.dtype), *folded)  # pyright: ignore[reportGeneralTypeIssues]
    return cosines(dots, query, directions, log_scale)


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
    noisy = clean if drawn is None else clean + noise * drawn
    chosen = _best(noisy.detach(), top)
    return noisy, chosen, gates_of(noisy, chosen, renormalise)


def gates_of(noisy: Tensor, chosen: Tensor, renormalise: bool) -> Tensor:
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
