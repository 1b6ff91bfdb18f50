"""Which of two features a network learns, an MLP beside a convolution; and experts where there are several cases.

n examples, P patches, K pixels a patch and classes, d width, m cases, e experts

Theorem 1 of GMoE (Li et al., 2023) says that a network learns the correlation with the label that its architecture
computes most easily. Two features tell the class here: a pixel (pixel y of the first patch is 1) and a patch (one of
the other patches is c_y, of K orthonormal vectors). All else is noise. An MLP sees which pixel it is, a convolution
over patches with a mean at its end does not. On shifted examples one of the two features points to the next class.

Theorem 2 is of conditional statements, `if x is in case i then h_i(x)`: with more experts the alignment first gets
better, as each has fewer cases to learn, and then worse, as there are more to learn from the same examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.seeds import derive, generator
from holdfast.core.tape import auxiliary, tape
from holdfast.nn.experts.layer import SparseMoE

PATCHES, PIXELS = 10, 4  # P, and K
NETWORKS = ("mlp", "fcn")
SETS = ("valid", "pixel-shift", "patch-shift")  # named by what points to the wrong class
NOISY = tuple((pixel, round(pixel + more, 2)) for pixel in (0.9, 0.8, 0.7) for more in (0.0, 0.05, 0.1))
COUNTS = (1, 2, 4, 6, 8, 12)  # experts


@dataclass(frozen=True, kw_only=True)
class World:
    """How often each of the two features points to the class; else it points to another one."""

    pixel: float = 1.0
    patch: float = 1.0
    seed: int = 0  # of the K orthonormal vectors

    def __post_init__(self) -> None:
        if not (0 <= self.pixel <= 1 and 0 <= self.patch <= 1):
            raise BadInput(f"pixel and patch are chances between 0 and 1, not {self.pixel} and {self.patch}")

    def draw(self, count: int, *, chance: torch.Generator, shifted: str = "") -> tuple[Tensor, Tensor]:
        """(n, P, K) and (n,); with `pixel-shift` or `patch-shift` that feature tells the class after the true one."""
        y = torch.randint(PIXELS, (count,), generator=chance)
        x = torch.randn(count, PATCHES, PIXELS, generator=chance)
        each = torch.arange(count)
        pixel = _told(y + (shifted == "pixel-shift"), self.pixel, chance)
        x[each, 0, pixel] = 1.0
        patch = _told(y + (shifted == "patch-shift"), self.patch, chance)
        at = torch.randint(1, PATCHES, (count,), generator=chance)  # never the first, where the pixel is
        x[each, at] = self.vectors()[patch]
        return x, y

    def vectors(self) -> Tensor:
        """(K, K) c_1 to c_K."""
        return torch.linalg.qr(torch.randn(PIXELS, PIXELS, generator=generator(self.seed, "vectors")))[0].T.contiguous()


class FCN(nn.Module):
    """Every patch through the same 20 filters, then to the classes, and the mean over patches."""

    def __init__(self, filters: int = 20) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(PIXELS, filters), nn.Linear(filters, PIXELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).mean(1)  # (n, K)


def network(kind: str) -> nn.Module:
    """The published ones: an MLP of 40, 100, 100 and 4 units, a convolution over patches with 20 filters."""
    if kind == "mlp":
        hidden = nn.Linear(PATCHES * PIXELS, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(100, PIXELS))
    if kind == "fcn":
        return FCN()
    raise unknown("network", kind, NETWORKS)


def learned(
    kind: str,
    world: World,
    *,
    epochs: Sequence[int] = (50,),
    examples: int = 100_000,
    scored: int = 2_000,
    batch: int = 500,
    lr: float = 1e-3,
    seed: int = 0,
) -> dict[int, dict[str, float]]:
    """After so many epochs the accuracy on examples like those that trained, and on both shifted sets; plain Adam."""
    chance = generator(seed, "alignment", kind)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derive(seed, "init"))
        net = network(kind)
    x, y = world.draw(examples, chance=chance)
    tests = {name: world.draw(scored, chance=chance, shifted=name) for name in SETS}
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, fused=True)
    found = {}
    for epoch in range(1, max(epochs) + 1):
        for rows in torch.randperm(examples, generator=chance).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        if epoch in epochs:
            with torch.no_grad():
                found[epoch] = {
                    name: round(float((net(a).argmax(1) == b).float().mean()), 4) for name, (a, b) in tests.items()
                }
    return found


def cases_error(
    count: int,
    *,
    cases: int = 6,
    width: int = 16,
    hidden: int = 16,
    examples: int = 4_000,
    steps: int = 1_500,
    wide: bool = False,
    seed: int = 0,
) -> float:
    """Held-out error of `if x is in case i then A_i x`, by e experts of one token each; 1 is that of saying nothing.

    With `wide` one network has the hidden units of all experts.
    """
    chance = generator(seed, "cases")
    centres = 6 * torch.randn(cases, width, generator=chance) / width**0.5
    maps = torch.randn(cases, width, width, generator=chance) / width**0.5

    def draw(n: int) -> tuple[Tensor, Tensor]:
        case = torch.randint(cases, (n,), generator=chance)
        inside = torch.randn(n, width, generator=chance)
        return centres[case] + inside, torch.einsum("nij,nj->ni", maps[case], inside)

    (x, y), (a, b) = draw(examples), draw(4_000)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derive(seed, "init"))
        settings = {"count": 1 if wide else count, "top": 1, "inner": width, "balance": 0.01}
        net = SparseMoE(width, hidden * (count if wide else 1), nn.GELU(), **settings).train()
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, fused=True)
        for _ in range(steps):
            rows = torch.randint(examples, (256,), generator=chance)
            with tape() as side:
                loss = F.mse_loss(net(x[rows]), y[rows])
            extra = auxiliary(side)
            optimizer.zero_grad()
            (loss if extra is None else loss + extra).backward()
            optimizer.step()
    with torch.no_grad():
        return round(float(F.mse_loss(net.eval()(a), b) / b.square().mean()), 4)


def study(*, seeds: Sequence[int] = (0, 1, 2)) -> dict[str, Any]:
    """Everything that docs/theory.md tells of the two theorems; about 25 minutes on one core."""
    noisy = {
        kind: {
            f"{pixel:g}, {patch:g}": learned(kind, World(pixel=pixel, patch=patch), epochs=(10, 50, 200), batch=2_000)
            for pixel, patch in NOISY
        }
        for kind in NETWORKS
    }
    errors = {
        str(count): {
            name: [cases_error(count, wide=wide, seed=seed) for seed in seeds]
            for name, wide in (("experts", False), ("one network", True))
        }
        for count in COUNTS
    }
    return {"noiseless": {kind: learned(kind, World())[50] for kind in NETWORKS}, "noisy": noisy, "cases": errors}


def _told(y: Tensor, often: float, chance: torch.Generator) -> Tensor:
    """(n,) the class that a feature tells: this one so often, else one of the others."""
    other = torch.randint(1, PIXELS, y.shape, generator=chance)
    wrong = torch.rand(len(y), generator=chance) >= often
    return (y + other * wrong) % PIXELS
