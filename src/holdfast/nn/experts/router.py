"""Which experts a token goes to: scores by cosine, a linear map or chance, noise in training, the k best, their gates.

t tokens, e experts, k chosen, d width, q width in which the cosine is taken
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown

ROUTERS = ("cosine", "linear", "random")
SLOTS = 1021  # places that the random router tells apart


@dataclass(frozen=True, slots=True)
class Routing:
    """What a router says of each token, in fp32."""

    clean: Tensor  # (t, e) scores without noise
    noisy: Tensor  # (t, e) those by which was chosen
    chosen: Tensor  # (t, k) experts, the best first
    gates: Tensor  # (t, k) how much each counts


class CosineRouter(nn.Module):
    """s cos(W u + b, E_e): the direction alone decides, so the scores lie within s; s = 1 / temperature is learned."""

    def __init__(
        self, width: int, experts: int, *, inner: int = 256, temperature: float = 0.5, learned: bool = True
    ) -> None:
        super().__init__()
        if inner < 1 or not temperature >= 1 / LARGEST:
            raise BadInput(f"a cosine router needs inner of at least 1 and a temperature of at least {1 / LARGEST}")
        self.project = nn.Linear(width, inner)
        self.directions = nn.Parameter(torch.empty(experts, inner).normal_(std=0.01))
        log_scale = torch.tensor(-math.log(temperature))
        if learned:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)

    def forward(self, u: Tensor, narrow: Tensor | None = None) -> Tensor:
        """(..., e) from tokens (..., d) in fp32; `narrow` are the same ones in a type with quicker products.

        The length of W u + b is the same for all experts and decides nothing between them, so it may come of those.
        The rest, E (W u + b) = (E W) u + E b, then has no product of the width q and stays in fp32. Gradients come back
        through `narrow`.
        """
        weight, bias = self.project.weight, self.project.bias
        if narrow is not None:
            return narrow_scores(u, narrow, weight, bias, self.directions, self.log_scale)
        directions = self.directions.float()
        query = F.linear(u, weight.float(), bias.float())  # (..., q)
        return cosines(F.linear(query, directions), query, directions, self.log_scale)


class LinearRouter(nn.Module):
    """W u, without a bias."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, experts, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        return F.linear(u, self.project.weight.float())  # (..., e)


class RandomRouter(nn.Module):
    """Scores drawn once for each place in a row, deaf to what the token says: what routing is compared with.

    They are no parameters and never learn. Places further than `SLOTS` begin anew.
    """

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.register_buffer("scores", torch.randn(SLOTS, experts))

    def forward(self, u: Tensor) -> Tensor:
        assert isinstance(self.scores, Tensor)
        place = torch.arange(u.shape[-2], device=u.device) % SLOTS
        return self.scores.float()[place].expand(*u.shape[:-1], -1)  # (..., e)


def make_router(
    kind: str, width: int, experts: int, *, inner: int, temperature: float, learned: bool
) -> CosineRouter | LinearRouter | RandomRouter:
    """A router by name; what is said of the cosine is for it alone."""
    if kind == "cosine":
        return CosineRouter(width, experts, inner=inner, temperature=temperature, learned=learned)
    if kind == "linear":
        return LinearRouter(width, experts)
    if kind == "random":
        return RandomRouter(experts)
    raise unknown("router", kind, ROUTERS)


def route(
    router: nn.Module, u: Tensor, *, top: int, renormalise: bool, noise: float, narrow: Tensor | None = None
) -> Routing:
    """Choose `top` experts for each token (..., d); `noise` is the standard deviation of what is added to the scores.

    Gates are the softmax of the scores at the chosen ones, with `renormalise` divided by their sum. All of it is fp32,
    under autocast too, but for the lengths of a cosine where `narrow` tokens are given: a rounded score would send
    tokens elsewhere.
    """
    with torch.autocast(u.device.type, enabled=False):
        scores = router(u.float(), narrow) if isinstance(router, CosineRouter) else router(u.float())
        clean = scores.flatten(0, -2)
        drawn = torch.randn_like(clean) if noise else None
        noisy, chosen, gates = choose(clean, drawn, noise=noise, top=top, renormalise=renormalise)
    return Routing(clean, noisy, chosen, gates)


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
