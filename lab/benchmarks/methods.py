"""Benchmarks `methods` and `costs`: a training step of each method relative to ERM on the same network, in fp32.

Images use ViT-S/16 on a GPU and ResNet-18 on a CPU. Methods for streams are measured in the second stage, where their
regulariser is active, and methods for graphs on graphs.
"""

import copy
from functools import partial

import numpy as np
import torch

from holdfast import catalog
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import generator, seeded
from holdfast.data.batches import Batches, Examples, prepare
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.methods.base import Method, StageInfo
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.tuning import tune
from lab.benchmarks.harness import Result, attempt, one_thread, ratio, repeated
from lab.benchmarks.networks import classifier, trainer

# erm/erm is a control: its distance from 1 is the noise of the measurement
TARGETS = {
    "erm": 1.05,
    "dann": 1.05,
    "irm": 1.10,
    "coral": 1.05,
    "vrex": 1.05,
    "fishr": 1.15,
    "mldg": 2.1,
    "swad(erm)": 1.10,
}
CLASSES, DOMAINS = 7, 3
MEASURED_ELSEWHERE = ("mil", "hma", "progressive(erm)")  # benchmarks of their own, or the cost of the wrapped method
ROUNDS = 3
GRAPHS = "gin-subgraph"


def run(device: torch.device) -> list[Result]:
    """Measure every method that has a target, alternating with ERM."""
    gpu = device.type == "cuda"
    batch, encoder = image_batch(device), image_encoder(device)
    count = 8 if gpu else 1
    reference = repeated(partial(method_on("erm", encoder, device).step, batch), count)
    results = []
    with one_thread():
        for name, target in TARGETS.items():
            candidate = repeated(partial(method_on(name, encoder, device).step, batch), count)
            results.append(Result(f"{name}/erm", ratio(candidate, reference, device, rounds=15), bar=target))
    return results


def image_encoder(device: torch.device) -> Backbone:
    with seeded(0, "init"):
        return catalog.build("encoders", "vit-s/16" if device.type == "cuda" else "resnet18", lambda: None, options={})


def image_batch(device: torch.device, *, few: bool = False) -> DomainBatch:
    """Return 162 images on a GPU, as published, or 96 small ones on a CPU; a quarter of them with `few`."""
    size, pixels = (54, 224) if device.type == "cuda" else (32, 32)
    size = size // 4 if few else size
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (DOMAINS * size, 3, pixels, pixels), dtype=np.uint8)
    y = torch.from_numpy(rng.integers(0, CLASSES, DOMAINS * size)).to(device)
    return DomainBatch(torch.from_numpy(images).to(device), y, tuple(range(DOMAINS)), (size,) * DOMAINS)


def method_on(name: str, encoder: Backbone, device: torch.device) -> Method:
    """Return a method in its first stage that trains a copy of the encoder and a new head."""
    with seeded(0, "init"):
        backbone = copy.deepcopy(encoder)
        tune(backbone, "full")
        model = classifier(backbone, backbone.width, CLASSES, device)
        method = trainer(model, partial(catalog.build, "methods", name, options={}), lr=1e-5)
        method.begin_stage(StageInfo(0, tuple(f"d{i}" for i in range(DOMAINS))))
    return method


def run_costs(device: torch.device) -> list[Result]:
    """Measure every method without a target, alternating with ERM on the same network and batch."""
    gpu = device.type == "cuda"
    images = (image_encoder(device), image_batch(device, few=not gpu), 2 if gpu else 1)
    graphs = (*_graphs(device), 8)
    results = []
    with one_thread():
        for name in catalog.buildable_names("methods"):
            if name in TARGETS or name in MEASURED_ELSEWHERE:
                continue
            measure = partial(_second_stage_ratio, name, *(graphs if catalog.incompatibility(name, "mlp") else images))
            results.append(attempt(f"{name}/erm", partial(measure, device), bar=None))
    return results


def _second_stage_ratio(name: str, backbone: Backbone, batch: DomainBatch, count: int, device: torch.device) -> float:
    candidates = []
    for method_name in (name, "erm"):
        method = method_on(method_name, backbone, device)
        method.step(batch)
        method.end_stage([batch])
        method.begin_stage(StageInfo(1, tuple(f"later {i}" for i in range(DOMAINS))))
        candidates.append(repeated(partial(method.step, batch), count))
    return ratio(candidates[0], candidates[1], device, rounds=ROUNDS)


def _graphs(device: torch.device) -> tuple[Backbone, DomainBatch]:
    data = world("graph", "size", domains=DOMAINS, size=64, classes=CLASSES, seed=0)
    with seeded(0, "init"):
        backbone = catalog.build("encoders", GRAPHS, partial(data.raw.take, np.arange(len(data))), options={})
    store = prepare(data.raw, backbone.prepare)
    examples = Examples(store, torch.from_numpy(data.y), data.domains, device=device)
    splits = [Part(domain, data.rows_of(domain)) for domain in data.domains]
    batch = next(Batches(examples, splits, 32, generator=generator(0, "bench")))
    return backbone, batch
