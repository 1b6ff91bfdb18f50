"""Cached features of a frozen encoder against computing them: examples a second of the first and the second run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from holdfast.bench.harness import Result, seconds
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from holdfast.run.assemble import Workspace
from holdfast.run.settings import make_spec
from holdfast.run.train import episodes, train

WORDS = (
    "the",
    "plot",
    "was",
    "thin",
    "but",
    "great",
    "acting",
    "made",
    "up",
    "for",
    "poor",
    "sound",
    "and",
    "light",
)
SIZE, STEPS = 600, 20


def run(device: torch.device) -> list[Result]:
    """One case: how many times faster the second frozen MiniLM run is, end to end."""
    dataset = _texts()
    spec = make_spec(dataset, encoder="minilm", tune="frozen", plan="all", steps=STEPS, every=STEPS, device=device)
    with tempfile.TemporaryDirectory() as folder:

        def once() -> None:
            workspace = Workspace(dataset, device=device, cache=Path(folder))
            train(spec, next(episodes(spec, workspace)), workspace)

        warm = Workspace(dataset.limited(4), device=device, cache=Path(folder))
        train(spec, next(episodes(spec, warm)), warm)  # libraries and weights are loaded before either is timed
        first, second = seconds(once, device), seconds(once, device)
    return [Result("second/first", first / second, bar=20.0, at_least=True)]


def _texts() -> Dataset:
    """Sentences of 8 to 40 words in three domains."""
    chance = np.random.default_rng(0)
    n = 3 * SIZE
    texts = [" ".join(chance.choice(WORDS, size=chance.integers(8, 40))) for _ in range(n)]
    return Dataset("sentences", Texts.of(texts), np.arange(n) % 2, ("no", "yes"), np.arange(n) // SIZE, ("a", "b", "c"))
