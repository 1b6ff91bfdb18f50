"""Benchmarks `loop` and `cache`: the training loop against a hand-written one, cached against computed features."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.seeds import generator
from holdfast.core.store import TensorStore
from holdfast.data.batches import Batches, Examples
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from holdfast.data.splits import Part
from holdfast.train.fit import fit, newest
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from lab.benchmarks.harness import Result, one_thread, ratio, seconds
from lab.benchmarks.networks import classifier, trainer

WIDTH, HIDDEN, CLASSES, SIZE, BATCH, STEPS = 384, 256, 2, 2000, 32, 100
CACHE_SIZE, CACHE_STEPS = 600, 20
WORDS = (
    "the", "plot", "was", "thin", "but", "great", "acting", "made", "up", "for", "poor", "sound", "and", "light",
)  # fmt: skip


def run(device: torch.device) -> list[Result]:
    """Measure `fit` against a hand-written loop: same MLP and features, 32 examples from each of 3 domains."""
    torch.manual_seed(0)
    x = torch.randn(3 * SIZE, WIDTH)
    y = torch.randint(0, CLASSES, (3 * SIZE,))
    splits = [Part(f"d{i}", np.arange(i * SIZE, (i + 1) * SIZE)) for i in range(3)]
    examples = Examples(TensorStore(x), y, [split.domain for split in splits], device=device)
    candidate, reference = partial(_fit, examples, splits), partial(_by_hand, x.to(device), y.to(device))
    with one_thread():
        return [Result("fit/by-hand", ratio(candidate, reference, device, rounds=60), bar=1.02)]


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())


def _fit(examples: Examples, splits: list[Part]) -> None:
    torch.manual_seed(0)
    method = trainer(classifier(_mlp(), HIDDEN, CLASSES, examples.device))
    batches = Batches(examples, splits, BATCH, generator=generator(0, "batches"))
    fit(method, batches, lambda: ({"d0": 0.0}, {"d0": 0.0}), steps=STEPS, every=STEPS, choose=newest)


def _by_hand(x: Tensor, y: Tensor) -> None:
    """Train as a careful user would: shuffled epochs per domain, a joint batch, fused AdamW."""
    torch.manual_seed(0)
    model = nn.Sequential(_mlp(), nn.Linear(HIDDEN, CLASSES)).to(x.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    rng = torch.Generator().manual_seed(0)
    orders = [torch.empty(0, dtype=torch.long)] * 3
    for _ in range(STEPS):
        rows = []
        for i in range(3):
            if len(orders[i]) < BATCH:
                orders[i] = torch.cat([orders[i], torch.randperm(SIZE, generator=rng) + i * SIZE])
            rows.append(orders[i][:BATCH])
            orders[i] = orders[i][BATCH:]
        at = torch.cat(rows).to(x.device)
        loss = F.cross_entropy(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def run_cache(device: torch.device) -> list[Result]:
    """Measure how much faster the second run with frozen MiniLM is, end to end."""
    dataset = _texts()
    spec = make_spec(
        dataset, encoder="minilm", tune="frozen", plan="all", steps=CACHE_STEPS, every=CACHE_STEPS, device=device
    )
    with tempfile.TemporaryDirectory() as folder:

        def once(data: Dataset = dataset) -> None:
            workspace = Workspace(data, device=device, cache=Path(folder))
            train(spec, workspace.episodes(spec)[0], workspace)

        once(dataset.limited(4))  # load libraries and weights before timing
        first, second = seconds(once, device), seconds(once, device)
    return [Result("second/first", first / second, bar=20.0, at_least=True)]


def _texts() -> Dataset:
    """Return sentences of 8 to 40 words in three domains."""
    rng = np.random.default_rng(0)
    n = 3 * CACHE_SIZE
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(8, 40))) for _ in range(n)]
    return Dataset(
        "sentences", Texts.of(texts), np.arange(n) % 2, ("no", "yes"), np.arange(n) // CACHE_SIZE, ("a", "b", "c")
    )
