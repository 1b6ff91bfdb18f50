"""What a step of each rule costs beside ERM's on the same network, in fp32: ViT-S/16 on a GPU, ResNet-18 on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from holdfast import catalog
from holdfast.bench.harness import Result, one_thread, ratio
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import seeded
from holdfast.methods.base import Method, StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model, tune
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify

# the first is a control: what it shows beside 1 is the scatter of the measurement
BARS = {
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


def run(device: torch.device) -> list[Result]:
    """One case a rule that has a bar; each is measured turn by turn with ERM."""
    gpu = device.type == "cuda"
    batch, encoder = image_batch(device), image_encoder(device)
    count = 8 if gpu else 1
    reference = steps(method_on("erm", encoder, device), batch, count)
    found = []
    with one_thread():
        for name, bar in BARS.items():
            mine = steps(method_on(name, encoder, device), batch, count)
            found.append(Result(f"{name}/erm", ratio(mine, reference, device, rounds=15), bar=bar))
    return found


def image_encoder(device: torch.device) -> Backbone:
    with seeded(0, "init"):
        return catalog.build("encoders", "vit-s/16" if device.type == "cuda" else "resnet18", lambda: None, options={})


def image_batch(device: torch.device, *, few: bool = False) -> DomainBatch:
    """162 images on a GPU, as published, 96 small ones on a CPU; a few are a quarter of them."""
    size, pixels = (54, 224) if device.type == "cuda" else (32, 32)
    size = size // 4 if few else size
    chance = np.random.default_rng(0)
    images = chance.integers(0, 255, (DOMAINS * size, 3, pixels, pixels), dtype=np.uint8)
    y = torch.from_numpy(chance.integers(0, CLASSES, DOMAINS * size)).to(device)
    return DomainBatch(torch.from_numpy(images).to(device), y, tuple(range(DOMAINS)), (size,) * DOMAINS)


def method_on(name: str, encoder: Backbone, device: torch.device) -> Method:
    """A rule that trains a copy of an encoder and a head of its own, in its first stage."""
    with seeded(0, "init"):
        backbone = copy.deepcopy(encoder)
        tune(backbone, "full")
        head = Linear(backbone.width, CLASSES)
        model = Model(backbone, NoNeck(backbone.width), head, precision="fp32").to(device)
        make = partial(Optimizer, OptimizerSettings(lr=1e-5))
        method: Method = catalog.build("methods", name, model, options={}, task=Classify(), optimizer=make)
        method.to(device).begin_stage(StageInfo(0, tuple(f"d{i}" for i in range(DOMAINS))))
    return method.train()


def steps(method: Method, batch: DomainBatch, count: int) -> Callable[[], None]:
    def go() -> None:
        for _ in range(count):
            method.step(batch)

    return go
