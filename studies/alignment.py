"""Theorems 1 and 2 of GMoE (Li et al., 2023) as experiments: which feature a network learns, and experts for cases.

Shapes: n examples, P patches, K pixels per patch and classes, d width, m cases, e experts.

Theorem 1 states that a network learns the correlation with the label that its architecture computes most easily. Two
features predict the class here: a pixel (pixel y of the first patch is 1) and a patch (one of the other patches is
c_y, one of K orthonormal vectors). Everything else is noise. An MLP knows the position of a pixel; a convolution over
patches with global average pooling does not. In shifted examples one of the two features points to the next class.

Theorem 2 is about conditional statements, `if x is in case i then h_i(x)`: with more experts the alignment first
improves, because each expert learns fewer cases, and then degrades, because more experts share the same examples.
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
SETS = ("valid", "pixel-shift", "patch-shift")  # named after the feature that points to the wrong class
NOISY = tuple((pixel, round(pixel + more, 2)) for pixel in (0.9, 0.8, 0.7) for more in (0.0, 0.05, 0.1))
COUNTS = (1, 2, 4, 6, 8, 12)  # experts


@dataclass(frozen=True, kw_only=True)
class World:
    """Probability that each of the two features points to the class; otherwise it points to another one."""

    pixel: float = 1.0
    patch: float = 1.0
    seed: int = 0  # for the K orthonormal vectors

    def __post_init__(self) -> None:
        if not (0 <= self.pixel <= 1 and 0 <= self.patch <= 1):
            raise BadInput(f"`pixel` and `patch` must be between 0 and 1; got {self.pixel} and {self.patch}")

    def draw(self, count: int, *, rng: torch.Generator, shifted: str = "") -> tuple[Tensor, Tensor]:
        """Return x (n, P, K) and y (n,); with `pixel-shift` or `patch-shift` that feature points to the next class."""
        y = torch.randint(PIXELS, (count,), generator=rng)
        x = torch.randn(count, PATCHES, PIXELS, generator=rng)
        rows = torch.arange(count)
        pixel = _predicted(y + (shifted == "pixel-shift"), self.pixel, rng)
        x[rows, 0, pixel] = 1.0
        patch = _predicted(y + (shifted == "patch-shift"), self.patch, rng)
        position = torch.randint(1, PATCHES, (count,), generator=rng)  # not the first patch
        x[rows, position] = self.vectors()[patch]
        return x, y

    def vectors(self) -> Tensor:
        """Return c_1 to c_K, (K, K)."""
        return torch.linalg.qr(torch.randn(PIXELS, PIXELS, generator=generator(self.seed, "vectors")))[0].T.contiguous()


class FCN(nn.Module):
    """Convolution over patches: 20 shared filters, class scores per patch, mean over patches."""

    def __init__(self, filters: int = 20) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(PIXELS, filters), nn.Linear(filters, PIXELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).mean(1)  # (n, K)


def network(kind: str) -> nn.Module:
    """Return a published network: an MLP of 40, 100, 100 and 4 units, or a convolution with 20 filters."""
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
    """Train with Adam; map epoch to accuracies on examples like the training data and on both shifted sets."""
    rng = generator(seed, "alignment", kind)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derive(seed, "init"))
        net = network(kind)
    x, y = world.draw(examples, rng=rng)
    tests = {name: world.draw(scored, rng=rng, shifted=name) for name in SETS}
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, fused=True)
    accuracies = {}
    for epoch in range(1, max(epochs) + 1):
        for rows in torch.randperm(examples, generator=rng).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        if epoch in epochs:
            with torch.no_grad():
                accuracies[epoch] = {
                    name: round(float((net(a).argmax(1) == b).float().mean()), 4) for name, (a, b) in tests.items()
                }
    return accuracies


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
    """Return the held-out error of `if x is in case i then A_i x` with e experts; 1 is the error of predicting 0.

    With `wide`, one network has the hidden units of all experts.
    """
    rng = generator(seed, "cases")
    centres = 6 * torch.randn(cases, width, generator=rng) / width**0.5
    maps = torch.randn(cases, width, width, generator=rng) / width**0.5

    def draw(n: int) -> tuple[Tensor, Tensor]:
        case = torch.randint(cases, (n,), generator=rng)
        offset = torch.randn(n, width, generator=rng)
        return centres[case] + offset, torch.einsum("nij,nj->ni", maps[case], offset)

    (x, y), (a, b) = draw(examples), draw(4_000)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derive(seed, "init"))
        settings = {"count": 1 if wide else count, "top": 1, "inner": width, "balance": 0.01}
        settings |= {"temperature": 0.5, "noise": 1.0}
        net = SparseMoE(width, hidden * (count if wide else 1), nn.GELU(), **settings).train()
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, fused=True)
        for _ in range(steps):
            rows = torch.randint(examples, (256,), generator=rng)
            with tape() as recorded:
                loss = F.mse_loss(net(x[rows]), y[rows])
            extra = auxiliary(recorded)
            optimizer.zero_grad()
            (loss if extra is None else loss + extra).backward()
            optimizer.step()
    with torch.no_grad():
        return round(float(F.mse_loss(net.eval()(a), b) / b.square().mean()), 4)


def study(*, seeds: Sequence[int] = (0, 1, 2)) -> dict[str, Any]:
    """Return all numbers of docs/theory.md on the two theorems; about 25 minutes on one core."""
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


def _predicted(y: Tensor, probability: float, rng: torch.Generator) -> Tensor:
    """Return the class that a feature points to (n,): y with this probability, otherwise another class."""
    other = torch.randint(1, PIXELS, y.shape, generator=rng)
    wrong = torch.rand(len(y), generator=rng) >= probability
    return (y + other * wrong) % PIXELS
