"""Choice of experts: cosine scores, the top k of noisy scores, and their gates.

t tokens, e experts, k chosen, d width, q inner width of the cosine
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

GATES = ("preserving", "renormalised", "raw")
MAX_SCALE = 100.0  # of a cosine: the temperature never falls below 0.01
MAX_ARGMAX = 4  # up to this k, repeated argmax is faster on a GPU than a partial sort


@dataclass(frozen=True, slots=True)
class Routing:
    """Scores and choices of a router for every token, in fp32."""

    clean: Tensor  # (t, e) scores without noise
    noisy: Tensor  # (t, e) scores that decide the choice
    chosen: Tensor  # (t, k) experts, the best first
    gates: Tensor  # (t, k) weights of the chosen experts


def cosine_scores(dots: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor) -> Tensor:
    """Return scale dots / |query| / |direction| (..., e) for dots (..., e), query (..., q) and directions (e, q).

    Dividing the e scores rather than the q entries saves no further tensor of that width for the backward pass.
    """
    scale = log_scale.float().clamp(max=math.log(MAX_SCALE)).exp()
    lengths = [x.float().norm(dim=-1).clamp_min(1e-12) for x in (query, directions)]
    return dots * (scale / lengths[1]) / lengths[0][..., None]


def folded_scores(
    u: Tensor, narrow: Tensor, weight: Tensor, bias: Tensor, directions: Tensor, log_scale: Tensor
) -> Tensor:
    """Return cosine scores (..., e) with the norm from `narrow` and the dot products as (E W) u + E b."""
    directions = directions.float()
    folded = directions @ weight.float(), directions @ bias.float()
    query, dots = RouterProducts.apply(u, narrow, weight.to(narrow.dtype), bias.to(narrow.dtype), *folded)  # pyright: ignore[reportGeneralTypeIssues]
    return cosine_scores(dots, query, directions, log_scale)


class RouterProducts(torch.autograd.Function):
    """Products of a cosine router with tokens (..., d): weight (q, d) and bias in a narrow dtype, folded ones in fp32.

    `narrow` is u in the narrow dtype and receives the complete gradient. The folded weight (e, d) has few columns in
    the backward pass, which is slow on a GPU, so they are padded to 16 bytes.
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
        padded = F.pad(by_dots.to(rows.dtype), (0, -e % 8))  # (t, e rounded up)
        by_rows = (by_query @ weight).addmm_(padded, F.pad(folded.to(rows.dtype), (0, 0, 0, -e % 8)))
        by_folded = (padded.T @ rows)[:e].to(folded.dtype)
        by_narrow = by_rows.view_as(narrow), by_query.T @ rows, by_query.sum(dim=0)
        return None, *by_narrow, by_folded, by_dots.sum(dim=0)


def choose(clean: Tensor, noise: Tensor | None, *, sigma: float, top: int, gate: str) -> Routing:
    """Choose the top k experts by scores (t, e) plus `sigma` times the noise (t, e)."""
    noisy = clean if noise is None else clean + sigma * noise
    chosen = _top_indices(noisy.detach(), top)
    return Routing(clean, noisy, chosen, gate_values(noisy, chosen, gate))


def gate_values(noisy: Tensor, chosen: Tensor, gate: str) -> Tensor:
    """Return the gates (t, k) of the chosen experts: their softmax probabilities p, which `raw` leaves as they are.

    `renormalised` divides p by its sum S over the chosen experts, `preserving` by the constant S. Both sum to one, so
    copies of a network compute what it does. For equal experts the former has no gradient; the latter has that of p / S
    and lets the loss change the probability of the choice.
    """
    gates = noisy.softmax(dim=-1).gather(1, chosen)
    if gate == "raw":
        return gates
    total = gates.sum(dim=-1, keepdim=True)
    return gates / (total.detach() if gate == "preserving" else total)


def _top_indices(scores: Tensor, k: int) -> Tensor:
    """Return the indices (t, k) of the k largest scores per row, the largest first."""
    if k > MAX_ARGMAX:
        return scores.topk(k, dim=-1).indices
    indices: list[Tensor] = []
    for _ in range(k):
        if indices:
            scores = scores.scatter(1, indices[-1], -math.inf)
        indices.append(scores.argmax(dim=-1, keepdim=True))
    return indices[0] if k == 1 else torch.cat(indices, dim=1)
