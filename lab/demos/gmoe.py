"""GMoE: conditional statements whose frequencies are reversed in the target domain (Theorem 2 of Li et al., 2023).

The target of an example is a linear map of its features, another one for each of six cases. In training the first case
has 45% of the examples and the last one 3%; in the test domain it is the other way round. Experts start as copies of
one layer ("upcycled") and two of six process each example.

Shapes: n examples, d features, c cases, o outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.seeds import generator
from holdfast.core.tape import tape, with_auxiliary
from holdfast.nn.experts.layer import SparseMoE
from lab.demos.demo import Demo

FEATURES, OUTPUTS, WIDTH, HIDDEN = 16, 4, 32, 32
SHARES = (0.45, 0.25, 0.14, 0.08, 0.05, 0.03)  # of the cases in training
CASES = len(SHARES)
STEPS, BATCH, RATE, TEST = 600, 256, 3e-3, 4000
ROUTERS = {"routed experts": "cosine", "random routing": "random-matched"}


class _Network(nn.Module):
    """Linear in, one residual layer, linear out."""

    layer: nn.Module

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.enter, self.norm, self.layer = nn.Linear(FEATURES + CASES, WIDTH), nn.LayerNorm(WIDTH), layer
        self.leave = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x)
        return self.leave(hidden + self.layer(self.norm(hidden)))


def _dense(hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, WIDTH))


def _network(row: str) -> _Network:
    if row == "wide layer":
        return _Network(_dense(CASES * HIDDEN))
    network = _Network(layer := _dense(HIDDEN))
    if row in ROUTERS:
        experts = SparseMoE(WIDTH, HIDDEN, nn.GELU(), count=CASES, top=2, inner=16, router=ROUTERS[row])
        up, _, down = layer
        sources = (up.weight, up.bias, down.weight, down.bias)
        copies = (experts.up_proj, experts.up_proj_bias, experts.down_proj, experts.down_proj_bias)
        with torch.no_grad():
            for copied, source in zip(copies, sources, strict=True):
                assert isinstance(copied, Tensor)
                assert isinstance(source, Tensor)
                copied.copy_(source.expand_as(copied))
        network.layer = experts
    return network


class _Cases:
    """A linear map per case, and examples whose case is visible in their last six features."""

    def __init__(self, seed: int) -> None:
        self.maps = torch.randn(CASES, OUTPUTS, FEATURES, generator=generator(seed, "maps")) / FEATURES**0.5

    def draw(self, count: int, shares: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return examples (n, d + c) and targets (n, o)."""
        case = torch.multinomial(shares, count, replacement=True, generator=rng)
        x = torch.randn(count, FEATURES, generator=rng)
        marks = 2.0 * F.one_hot(case, CASES) + 0.3 * torch.randn(count, CASES, generator=rng)
        return torch.cat([x, marks], dim=1), torch.einsum("nof,nf->no", self.maps[case], x)


def score(row: str, seed: int) -> float:
    """Return the squared error on the test domain, relative to the variance of the targets."""
    cases, network, rng = _Cases(seed), _network(row), generator(seed, "batches")
    shares = torch.tensor(SHARES)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for _ in range(STEPS):
        x, y = cases.draw(BATCH, shares, rng)
        with tape() as side:
            risk = F.mse_loss(network(x), y)
        optimizer.zero_grad()
        with_auxiliary(risk, side).backward()
        optimizer.step()
        schedule.step()
    x, y = cases.draw(TEST, shares.flip(0), generator(seed, "test"))
    with torch.no_grad():
        return float(F.mse_loss(network.eval()(x), y) / y.var())


DEMO = Demo(
    name="demo/gmoe", about="six cases whose frequencies are reversed in the test domain",
    metric="relative squared error", lower_is_better=True, score=score,
    rows={
        "dense layer": "one layer of the size of an expert",
        "wide layer": "one layer of the size of all experts together",
        "random routing": "null control: the router reads random vectors",
        "routed experts": "two of six experts, chosen by the cosine router",
    },
    system="routed experts", null="random routing", baseline="dense layer",
)  # fmt: skip
