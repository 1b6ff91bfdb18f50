"""Which experts a token goes to: scores by cosine, a linear map or chance, noise in training, the k best, their gates.

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
ROUTERS = ("cosine", "linear", "random")
SLOTS = 1021  # places that the random router tells apart
FEW = 4  # so many best ones are found one after the other, which a GPU does sooner than a partial sort


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
        query = F.linear(u, self.project.weight.float(), self.project.bias.float())  # (..., q)
        scale = self.log_scale.float().clamp(max=math.log(LARGEST)).exp()
        # dividing the e scores, and not the q numbers, keeps nothing more of that width for the way back
        length = query.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return scale * F.linear(query, F.normalize(self.directions.float(), dim=-1)) / length  # (..., e)


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


def route(router: nn.Module, u: Tensor, *, top: int, renormalise: bool, noise: float) -> Routing:
    """Choose `top` experts for each token (..., d); `noise` is the standard deviation of what is added to the scores.

    Gates are the softmax of the scores at the chosen ones, with `renormalise` divided by their sum. All of it is fp32,
    under autocast too: a rounded score would send tokens elsewhere.
    """
    with torch.autocast(u.device.type, enabled=False):
        clean = router(u.float()).flatten(0, -2)
        noisy = clean + noise * torch.randn_like(clean) if noise else clean
        chosen = _best(noisy.detach(), top)
        gates = noisy.softmax(dim=-1).gather(1, chosen)
        if renormalise:
            gates = gates / gates.sum(dim=-1, keepdim=True)
    return Routing(clean, noisy, chosen, gates)


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
