"""What a step of the rules without a bar costs beside ERM's: told, and not judged.

Rules of a stream are measured in its second stage, where they have something to keep; those for graphs on graphs.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from holdfast import catalog
from holdfast.bench.harness import Result, attempt, one_thread, ratio
from holdfast.bench.methods import BARS, CLASSES, DOMAINS, image_batch, image_encoder, method_on, steps
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import generator, seeded
from holdfast.data.batches import Batches, Examples, prepare
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.methods.base import StageInfo
from holdfast.nn.backbones.base import Backbone

ELSEWHERE = ("mil", "hma", "progressive(erm)")  # measured by benches of their own, or as costly as what they wrap
ROUNDS = 3
GRAPHS = "gin-subgraph"


def run(device: torch.device) -> list[Result]:
    """One case a rule, each measured turn by turn with ERM on the same network and batch."""
    gpu = device.type == "cuda"
    images = (image_encoder(device), image_batch(device, few=not gpu), 2 if gpu else 1)
    graphs = (*_graphs(device), 8)
    found = []
    with one_thread():
        for name in catalog.buildable_names("methods"):
            if name in BARS or name in ELSEWHERE:
                continue
            backbone, batch, count = graphs if catalog.incompatibility(name, "mlp") else images
            found.append(attempt(f"{name}/erm", partial(_measured, name, backbone, batch, count, device), bar=None))
    return found


def _measured(name: str, backbone: Backbone, batch: DomainBatch, count: int, device: torch.device) -> float:
    both = []
    for rule in (name, "erm"):
        method = method_on(rule, backbone, device)
        method.step(batch)
        method.end_stage([batch])
        method.begin_stage(StageInfo(1, tuple(f"later {i}" for i in range(DOMAINS))))
        both.append(steps(method, batch, count))
    return ratio(both[0], both[1], device, rounds=ROUNDS)


def _graphs(device: torch.device) -> tuple[Backbone, DomainBatch]:
    data = world("graph", "size", domains=DOMAINS, size=64, classes=CLASSES, seed=0)
    with seeded(0, "init"):
        backbone = catalog.build("encoders", GRAPHS, partial(data.raw.take, np.arange(len(data))), options={})
    store = prepare(data.raw, backbone.prepare)
    examples = Examples(store, torch.from_numpy(data.y), data.domains, device=device)
    parts = [Part(domain, data.rows_of(domain)) for domain in data.domains]
    batch = next(Batches(examples, parts, 32, generator=generator(0, "bench")))
    return backbone, batch
