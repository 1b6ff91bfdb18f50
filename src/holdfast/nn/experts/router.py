"""Routers: scores of experts by cosine, a linear map or a control.

e experts, d width, q inner width of the cosine
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.ops.routing import Routing, choose, cosine_scores, folded_scores

ROUTERS = ("cosine", "linear", "random", "random-matched", "hash")
POSITIONS = 1021  # positions or hashes with scores of their own
HASH_STEP = 0.5  # width of a cell of the hash, in standard deviations of a random projection


class CosineRouter(nn.Module):
    """Score s cos(W u + b, E_e) with a learned scale s = 1 / temperature: only directions matter and |score| <= s."""

    rate_part = "router"

    def __init__(self, width: int, experts: int, *, inner: int = 256, temperature: float = 0.2) -> None:
        super().__init__()
        self.project = nn.Linear(width, inner)
        self.directions = nn.Parameter(torch.empty(experts, inner).normal_(std=0.01))
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))

    def forward(self, u: Tensor, narrow: Tensor | None = None) -> Tensor:
        """Return scores (..., e) of fp32 tokens (..., d); `narrow` are the same tokens in a dtype with faster products.

        The norm of W u + b is the same for all experts and does not change their order, so it may be computed from
        `narrow`. The dot products E (W u + b) = (E W) u + E b then need no product of width q and stay in fp32.
        Gradients flow through `narrow`.
        """
        weight, bias = self.project.weight, self.project.bias
        if narrow is not None:
            return folded_scores(u, narrow, weight, bias, self.directions, self.log_scale)
        directions = self.directions.float()
        query = F.linear(u, weight.float(), bias.float())  # (..., q)
        return cosine_scores(F.linear(query, directions), query, directions, self.log_scale)


class LinearRouter(nn.Module):
    """Score W u, without a bias."""

    rate_part = "router"

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, experts, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        return F.linear(u, self.project.weight.float())  # (..., e)


class RandomRouter(nn.Module):
    """Null control of routing: fixed random scores per position, independent of the token's content.

    The scores are a buffer and never trained. They repeat after `POSITIONS` positions.
    """

    scores: Tensor

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.register_buffer("scores", torch.randn(POSITIONS, experts))

    def forward(self, u: Tensor) -> Tensor:
        position = torch.arange(u.shape[-2], device=u.device) % POSITIONS
        return self.scores.float()[position].expand(*u.shape[:-1], -1)  # (..., e)


class ContentHash(nn.Module):
    """Hash of a token's direction: the cell of a random grid with m axes that contains it, as an integer.

    Tokens in one cell have one hash, others have unrelated ones. Rounding changes a hash only at the border of a cell,
    so it depends neither on the rest of the batch nor on padding.
    """

    axes: Tensor
    offsets: Tensor
    factors: Tensor

    def __init__(self, width: int, axes: int) -> None:
        super().__init__()
        self.register_buffer("axes", F.normalize(torch.randn(axes, width), dim=-1))
        self.register_buffer("offsets", torch.rand(axes))
        self.register_buffer("factors", torch.randint(1 << 20, 1 << 30, (axes,)))

    def forward(self, u: Tensor) -> Tensor:
        """Return hashes (...) from 0 to 2^31 - 2 of tokens (..., d)."""
        unit = F.normalize(u.detach().float(), dim=-1) * math.sqrt(u.shape[-1])
        cells = (F.linear(unit, self.axes.float()) / HASH_STEP + self.offsets.float()).floor().long()  # (..., m)
        return (cells * self.factors).sum(dim=-1) % ((1 << 31) - 1)


class HashRouter(nn.Module):
    """Control of learning: fixed random scores per `ContentHash`, so the token's content decides without training."""

    scores: Tensor

    def __init__(self, width: int, experts: int, *, axes: int = 8) -> None:
        super().__init__()
        self.hash = ContentHash(width, axes)
        self.register_buffer("scores", torch.randn(POSITIONS, experts))

    def forward(self, u: Tensor) -> Tensor:
        return self.scores.float()[self.hash(u) % POSITIONS]  # (..., e)


class MatchedRouter(nn.Module):
    """Null control with a trained cosine router, whose input is a pseudo-random vector instead of the token.

    Parameters, noise, gates and balance loss are those of the cosine router. The vector is a function of a fine
    `ContentHash`: equal tokens have equal vectors, but similar tokens have unrelated ones, so the scores of new tokens
    carry no information about their content.
    """

    vectors: Tensor

    def __init__(self, width: int, cosine: CosineRouter, *, axes: int = 16) -> None:
        super().__init__()
        self.cosine, self.hash = cosine, ContentHash(width, axes)
        self.register_buffer("vectors", torch.randn(POSITIONS, width))

    def forward(self, u: Tensor) -> Tensor:
        number, width = self.hash(u), u.shape[-1]
        shift = (number // POSITIONS)[..., None] + torch.arange(width, device=u.device)  # rows are rotated by the hash
        return self.cosine(self.vectors.float()[number % POSITIONS].gather(-1, shift % width))  # (..., e)


def make_router(kind: str, width: int, experts: int, *, inner: int, temperature: float) -> nn.Module:
    """Build a router by name; the keywords apply to cosine routers only."""
    if kind in ("cosine", "random-matched"):
        cosine = CosineRouter(width, experts, inner=inner, temperature=temperature)
        return cosine if kind == "cosine" else MatchedRouter(width, cosine)
    if kind == "linear":
        return LinearRouter(width, experts)
    return HashRouter(width, experts) if kind == "hash" else RandomRouter(experts)


def route(router: nn.Module, u: Tensor, *, top: int, gate: str, noise: float, narrow: Tensor | None = None) -> Routing:
    """Choose `top` experts for every token (..., d); `noise` is the standard deviation of the noise on the scores.

    `gate_values` defines the gates. Everything is in fp32, also under autocast, except the norms of a cosine with
    `narrow` tokens: rounded scores would change choices.
    """
    with torch.autocast(u.device.type, enabled=False):
        scores = router(u.float(), narrow) if isinstance(router, CosineRouter) else router(u.float())
        clean = scores.flatten(0, -2)
        draws = torch.randn_like(clean) if noise else None
        return choose(clean, draws, sigma=noise, top=top, gate=gate)
