"""Benchmark `kernels`: training steps of complete networks with one module of GPU kernels at a time left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from holdfast.accel.registry import without_kernels
from holdfast.core.seeds import generator
from holdfast.data.batches import Batches
from holdfast.data.synthetic import world
from holdfast.methods.base import StageInfo
from holdfast.methods.captured import captured_steps
from holdfast.train.assemble import assemble
from holdfast.train.fit import train_step
from holdfast.train.resolve import Request, resolve
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from lab.benchmarks.harness import Result, attempt, one_thread, ratio, repeated

WARMUP = 12  # steps before the measurement: a step is captured in the first ones
RECORDED = {"augment": "augment_kernels"}  # names of modules in records
FEWEST_GAIN = 1.05  # of a module of kernels that is worth its code


@dataclass(frozen=True)
class Network:
    """A kind of synthetic data and settings of a run, and the kernel modules that its steps may use."""

    kind: str
    shift: str
    settings: Mapping[str, Any]
    modules: tuple[str, ...]
    batch: int = 32  # examples per domain
    sizes: Mapping[str, Any] = field(default_factory=dict)  # of the data


_VIT: dict[str, Any] = {"encoder": "vit-s/16", "tune": "full", "encoder.size": 224}
_TEXT: dict[str, Any] = {"encoder": "minilm", "tune": "full"}
_RESNET: dict[str, Any] = {"encoder": "resnet50", "tune": "full", "encoder.size": 224}
NETWORKS = {
    "ViT-S/16": Network("image", "rotation", _VIT, ("norm", "attention"), 54),
    "GMoE, top 1": Network("image", "rotation", {**_VIT, "neck": "experts", "neck.top": 1}, ("experts",), 54),
    "GMoE, top 2": Network("image", "rotation", {**_VIT, "neck": "experts", "neck.top": 2}, ("experts",), 54),
    "ResNet-50": Network("image", "rotation", _RESNET, ("norm",)),
    "ResNet-18, augmented": Network(
        "image", "rotation", {"encoder": "resnet18", "tune": "full", "augment": "crop-flip"}, ("augment",)
    ),
    "ResNet-50, augmented": Network("image", "rotation", {**_RESNET, "augment": "domainbed"}, ("augment",)),
    "ViT-S/16, augmented": Network("image", "rotation", {**_VIT, "augment": "domainbed"}, ("augment",), 54),
    "MiniLM": Network("text", "vocabulary", _TEXT, ("norm", "attention")),
    "MiniLM with a memory": Network("text", "vocabulary", {**_TEXT, "neck": "memory"}, ("memory",)),
    "MiniLM with product keys": Network("text", "vocabulary", {**_TEXT, "neck": "product-memory"}, ("memory",)),
    "word LSTM with a bank": Network("text", "vocabulary", {"encoder": "memory-lstm"}, ("recurrent",)),
    "GIN": Network("graph", "size", {"encoder": "gin"}, ("norm",)),
}  # fmt: skip


def run(device: torch.device) -> list[Result]:
    """Measure steps of a run, with the drawing of their batches, without a module relative to all modules.

    The steps are captured CUDA graphs, in the precision of a run. A module whose ratio is below 1.05 in all networks is
    not worth its code. `control` leaves nothing out: its distance from 1 is the noise.
    """
    results = []
    with one_thread():
        for name, network in NETWORKS.items():
            for module in ("control", *network.modules):
                case = f"{name}, control" if module == "control" else f"{name}, without {RECORDED.get(module, module)}"
                results.append(attempt(case, partial(_without, network, module, device), bar=None))
    return results


def _without(network: Network, module: str, device: torch.device) -> float:
    """Return the duration of steps without a module divided by that with all modules."""
    torch.compiler.reset()
    count = 20 if device.type == "cuda" else 1
    with ExitStack() as stack:
        with_all = steps(network, device, stack)
        without = steps(network, device, stack, module)
        return ratio(repeated(without, count), repeated(with_all, count), device, rounds=9)


def steps(network: Network, device: torch.device, stack: ExitStack, module: str = "") -> Callable[[], None]:
    """Return a function that takes one step of a run; its capture ends with the stack."""
    gpu = device.type == "cuda"
    data = world(network.kind, network.shift, domains=4, size=4 * network.batch if gpu else 8, **network.sizes)
    workspace = Workspace(data, device=device)
    settings = {**network.settings, "plan": "leave-one-out", "plan.targets": [data.domains[-1]], "steps": 100}
    settings |= {"batch": network.batch if gpu else 4}
    if not gpu and "encoder.size" in settings:
        settings["encoder.size"] = 32
    spec = make_spec(data, device=device, settings=settings)
    (job,) = resolve(Request(specs=[spec]), workspace)
    assembly, stage = assemble(job.spec, episode := job.episode_in(workspace), workspace), episode.stages[0]
    method = assembly.make()
    method.begin_stage(StageInfo(0, tuple(part.domain for part in stage.train)))
    for phase in method.phases[:1]:
        method.begin_phase(phase)
    method.train()
    batches = Batches(
        assembly.examples, stage.train, job.spec.batch, generator=generator(0, "batches"), transform=assembly.transform
    )
    stack.enter_context(captured_steps(method, compile="auto"))

    def step() -> None:
        with without_kernels(module):
            train_step(method, next(batches))

    for _ in range(WARMUP if gpu else 1):
        step()
    return step
