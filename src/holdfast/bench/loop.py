"""The training loop against one written by hand: same MLP, same cached features, 32 of each of 3 domains."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.bench.harness import Result, one_thread, ratio
from holdfast.core.seeds import generator
from holdfast.core.store import TensorStore
from holdfast.data.batches import Batches, Examples
from holdfast.data.splits import Part
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.protocols.fit import fit
from holdfast.protocols.select import newest
from holdfast.tasks.classify import Classify

WIDTH, HIDDEN, CLASSES, SIZE, BATCH, STEPS = 384, 256, 2, 2000, 32, 100


def run(device: torch.device) -> list[Result]:
    """One case: `fit` over the hand-written loop."""
    torch.manual_seed(0)
    x = torch.randn(3 * SIZE, WIDTH)
    y = torch.randint(0, CLASSES, (3 * SIZE,))
    parts = [Part(f"d{i}", np.arange(i * SIZE, (i + 1) * SIZE)) for i in range(3)]
    examples = Examples(TensorStore(x), y, [p.domain for p in parts], device=device)
    mine, reference = partial(_fit, examples, parts), partial(_by_hand, x.to(device), y.to(device))
    with one_thread():
        return [Result("fit/by-hand", ratio(mine, reference, device, rounds=60), bar=1.05)]


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())


def _fit(examples: Examples, parts: list[Part]) -> None:
    torch.manual_seed(0)
    model = Model(_mlp(), NoNeck(HIDDEN), nn.Linear(HIDDEN, CLASSES)).to(examples.device)
    method = ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings()))
    batches = Batches(examples, parts, BATCH, generator=generator(0, "batches"))
    fit(method, batches, lambda: ({"d0": 0.0}, {"d0": 0.0}), steps=STEPS, every=STEPS, choose=newest)


def _by_hand(x: Tensor, y: Tensor) -> None:
    """What a careful user writes: shuffled passes over each domain, a joint batch, fused AdamW."""
    torch.manual_seed(0)
    model = nn.Sequential(_mlp(), nn.Linear(HIDDEN, CLASSES)).to(x.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    chance = torch.Generator().manual_seed(0)
    orders = [torch.empty(0, dtype=torch.long)] * 3
    for _ in range(STEPS):
        rows = []
        for i in range(3):
            if len(orders[i]) < BATCH:
                orders[i] = torch.cat([orders[i], torch.randperm(SIZE, generator=chance) + i * SIZE])
            rows.append(orders[i][:BATCH])
            orders[i] = orders[i][BATCH:]
        at = torch.cat(rows).to(x.device)
        loss = F.cross_entropy(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
