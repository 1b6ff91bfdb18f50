"""Gauge: what a model's predictions are held against, measured once on the examples it was trained and chosen by.

n examples, b batch, c classes, d width
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.inputs import Inputs
from holdfast.core.seeds import derive
from holdfast.core.tape import tape
from holdfast.data.examples import Examples
from holdfast.data.splits import Part
from holdfast.nn.model import Model
from holdfast.trust.calibration import fit_temperature
from holdfast.trust.foreignness import Foreignness, percentiles
from holdfast.trust.reads import read_entropy

ROWS = 2000  # training rows, and validation rows, that are looked at


class Seen(NamedTuple):
    """What one pass tells of n examples: outputs (n, c), features (n, d), entropy of reads (n,) or None."""

    outputs: np.ndarray
    features: np.ndarray
    entropy: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Gauge:
    """A temperature for outputs, a measure of foreignness, and how undecided reads of a memory were."""

    temperature: float
    foreign: Foreignness
    entropies: np.ndarray | None = None  # sorted, of validation examples; None without a memory that can be heard

    def undecided(self, entropy: np.ndarray | None) -> np.ndarray | None:
        """(n,) of 100 validation examples, how many read their memory more decidedly, or as much."""
        return None if entropy is None or self.entropies is None else percentiles(entropy, self.entropies)

    def save(self, path: Path) -> Path:
        parts = {"scale": self.foreign.scale, "centres": self.foreign.centres, "known": self.foreign.known}
        if self.entropies is not None:
            parts["entropies"] = self.entropies
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in parts.items()}
        return save_tree(path, {"temperature": self.temperature, **tensors})

    @staticmethod
    def load(path: Path) -> Gauge:
        tree = load_tree(path)
        parts = {name: value.numpy() for name, value in tree.items() if isinstance(value, Tensor)}
        entropies = parts.pop("entropies", None)
        return Gauge(tree["temperature"], Foreignness(**parts), entropies)


def seeing(model: Model) -> Callable[[Inputs], Tensor]:
    """A function of inputs (b, ..) that gives outputs, features and entropy side by side, for `seen` to take apart."""

    def look(x: Inputs) -> Tensor:
        with tape() as heard:
            features = model.encode(x)
            outputs = model.head(model.through(features))
        entropy = read_entropy(heard, len(outputs))
        last = torch.full_like(outputs[:, 0], torch.nan) if entropy is None else entropy
        return torch.cat([outputs.float(), features.float().flatten(1), last[:, None].float()], dim=1)

    return look


def seen(found: Tensor, classes: int) -> Seen:
    """What `seeing` gave of n examples, taken apart."""
    outputs, features, entropy = np.split(found.numpy(), [classes, found.shape[1] - 1], axis=1)
    return Seen(outputs, features, None if np.isnan(entropy).any() else entropy[:, 0])


def measure(
    model: Model, examples: Examples, train: Sequence[Part], valid: Sequence[Part], *, classes: int, seed: int
) -> Gauge | None:
    """The gauge of a trained classifier; None where there are no labelled rows of both kinds to measure it on."""
    drawn = [_drawn(parts, examples, derive(seed, "gauge", i)) for i, parts in enumerate((train, valid))]
    if not all(map(len, drawn)):
        return None
    training = model.training
    model.eval()
    sides = []
    for rows in drawn:
        found = examples.map(seeing(model), rows, together=model.together)
        sides.append((seen(found, classes), examples.targets(torch.from_numpy(rows)).cpu().numpy()))
    model.train(training)
    (known, y), (held, truth) = sides
    entropies = None if held.entropy is None else np.sort(held.entropy)
    foreign = Foreignness.fit(known.features, y, held.features)
    return Gauge(fit_temperature(held.outputs, truth), foreign, entropies)


def _drawn(parts: Sequence[Part], examples: Examples, seed: int) -> np.ndarray:
    """At most ROWS labelled rows, as many of each domain as can be."""
    found, chance = [], np.random.default_rng(seed)
    share = -(-ROWS // max(1, len(parts)))
    for part in parts:
        rows = part.rows[(examples.targets(torch.from_numpy(part.rows)) >= 0).cpu().numpy()]
        found.append(np.sort(chance.choice(rows, share, replace=False)) if len(rows) > share else rows)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
