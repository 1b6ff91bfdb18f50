"""Which experts a token goes to: scores by cosine or by a linear map, noise in training, the k best and their gates.

t tokens, e experts, k chosen, d width, q width in which the cosine is taken
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown

LARGEST = 100.0  # of the scale of a cosine: a temperature never falls below 0.01
ROUTERS = ("cosine", "linear")


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

    def forward(self, u: Tensor) -> Tensor:
        query = F.normalize(F.linear(u, self.project.weight.float(), self.project.bias.float()), dim=-1)  # (t, q)
        scale = self.log_scale.float().clamp(max=math.log(LARGEST)).exp()
        return scale * F.linear(query, F.normalize(self.directions.float(), dim=-1))  # (t, e)


class LinearRouter(nn.Module):
    """W u, without a bias."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, experts, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        return F.linear(u, self.project.weight.float())  # (t, e)


def make_router(
    kind: str, width: int, experts: int, *, inner: int, temperature: float, learned: bool
) -> CosineRouter | LinearRouter:
    """A router by name; what is said of the cosine is for it alone."""
    if kind == "cosine":
        return CosineRouter(width, experts, inner=inner, temperature=temperature, learned=learned)
    if kind == "linear":
        return LinearRouter(width, experts)
    raise unknown("router", kind, ROUTERS)


def route(router: nn.Module, u: Tensor, *, top: int, renormalise: bool, noise: float) -> Routing:
    """Choose `top` experts for each token (t, d); `noise` is the standard deviation of what is added to the scores.

    Gates are the softmax of the scores at the chosen ones, with `renormalise` divided by their sum. All of it is fp32,
    under autocast too: a rounded score would send tokens elsewhere.
    """
    with torch.autocast(u.device.type, enabled=False):
        clean = router(u.float())
        noisy = clean + noise * torch.randn_like(clean) if noise else clean
        gates, chosen = noisy.softmax(dim=-1).topk(top, dim=-1)
        if renormalise:
            gates = gates / gates.sum(dim=-1, keepdim=True)
    return Routing(clean, noisy, chosen, gates)
