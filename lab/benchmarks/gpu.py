"""Benchmark `gpu`: training steps as users get them, and many small runs that share one GPU.

Steps include drawing the batch. Times are in milliseconds, because their targets are; for runs at once the ratio is
the throughput relative to one run after another, for texts also to one after another whose steps are not captured as
CUDA graphs. It is counted from the end of the first runs, one per worker, and also from the start of the workers. The
process that forks them is started first, as commands with `--jobs` do. On a CPU everything is tiny.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from holdfast.core.forking import start_early
from holdfast.core.seeds import generator, seeded
from holdfast.core.store import TensorStore
from holdfast.data.batches import Batches, Examples
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.engines.work import Local, run_all
from holdfast.methods.captured import captured_steps
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.resnet import ResNet
from holdfast.record import RunRecord
from holdfast.train.assemble import placed
from holdfast.train.fit import train_step
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Request, resolve
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from lab.benchmarks.harness import Result, attempt, one_thread, seconds
from lab.benchmarks.networks import classifier, random_images, trainer, vit

CLASSES, DOMAINS = 7, 3


@dataclass(frozen=True)
class Sizes:
    """Size of the work: a GPU gets that of the published experiments."""

    pixels: int = 224
    depth: int = 50
    layers: int = 12
    resnet_batch: int = 96
    vit_batch: int = 160
    warmup: int = 8  # steps before timing, in which a step is captured
    steps: int = 30
    at_once: int = 15
    runs: int = 60  # at once
    few: int = 4  # one after another
    run_steps: int = 300
    core_steps: int = 60  # of a run that is also computed on one CPU core
    text: str = "minilm"
    rows: int = 400  # per domain


GPU = Sizes()
CPU = Sizes(
    pixels=32, depth=18, layers=2, resnet_batch=6, vit_batch=6, warmup=1, steps=2, at_once=2, runs=3, few=2,
    run_steps=2, text="bilstm", rows=12,
)  # fmt: skip


def run(device: torch.device) -> list[Result]:
    """Measure steps, their speed without CUDA graphs, and runs at once."""
    gpu = device.type == "cuda"
    sizes = GPU if gpu else CPU
    results = []
    start_early(str(sizes.at_once))
    with one_thread():
        for name, make, size, bar in (
            ("ResNet", _resnet, sizes.resnet_batch, 20.0),
            ("ViT-S/16", lambda sizes: vit(sizes.pixels, sizes.layers), sizes.vit_batch, 21.0),
        ):
            times = {mode: step_seconds(make(sizes), size, sizes, device, mode) for mode in ("auto", "off")}
            case = f"{name}, step of {size} images"
            results += [
                Result(f"{case}, ms", 1000 * times["auto"], bar=bar if gpu else None),
                Result(f"{case}, captured/eager", times["auto"] / times["off"], bar=None),
            ]
    graphs: dict[str, Any] = {"encoder": "gin"}
    texts: dict[str, Any] = {"encoder": sizes.text} | ({"tune": "full"} if gpu else {})
    for kind, shift, settings in (("text", "vocabulary", texts), ("graph", "size", graphs)):
        case = f"{kind} runs, throughput of {sizes.at_once} at once/one after another"
        with tempfile.TemporaryDirectory() as folder:
            timed = _timer(kind, shift, settings, sizes, device, Path(folder))
            modes = {case: "auto"} | ({f"{case}, not captured": "off"} if kind == "text" else {})
            for name, mode in modes.items():
                gain = partial(_gain, timed, sizes, mode)
                results.append(attempt(name, gain, bar=4.0 if gpu else None, at_least=True))
            started = partial(_gain, timed, sizes, "auto", started=True)
            results.append(
                attempt(f"{case}, with the start of the workers", started, bar=4.0 if gpu else None, at_least=True)
            )
            if kind == "graph" and gpu:
                short = replace(sizes, run_steps=sizes.core_steps)
                slower = partial(_over_core, partial(_timer, kind, shift, settings, short, folder=Path(folder)), device)
                results.append(attempt("graph run, GPU/one CPU core", slower, bar=1.0))
    return results


def step_seconds(backbone: Backbone, size: int, sizes: Sizes, device: torch.device, compile: str) -> float:
    """Return the median duration of a training step in bf16 on a GPU, with the drawing of its batch."""
    precision = "bf16" if device.type == "cuda" else "fp32"
    model = placed(classifier(backbone, backbone.width, CLASSES, device, precision=precision), device)
    method = trainer(model, optimizer="adam", lr=5e-5)
    data, each = random_images(4 * size, sizes.pixels, CLASSES, device), 4 * size // DOMAINS
    assert isinstance(data.x, torch.Tensor)
    splits = [Part(f"d{i}", np.arange(i * each, (i + 1) * each)) for i in range(DOMAINS)]
    examples = Examples(TensorStore(data.x.cpu()), data.y.cpu(), [split.domain for split in splits], device=device)
    batches = Batches(examples, splits, size // DOMAINS, generator=generator(0, "batches"))

    def step() -> None:
        train_step(method, next(batches))

    with captured_steps(method, compile=compile):
        for _ in range(sizes.warmup):
            step()
        groups = [seconds(lambda: [step() for _ in range(sizes.steps // 2)], device) for _ in range(3)]
    return median(groups) / (sizes.steps // 2)


def _resnet(sizes: Sizes) -> Backbone:
    with seeded(0, "init"):
        return ResNet(depth=sizes.depth, stem="large" if sizes.pixels >= 96 else "small", size=sizes.pixels)


class Pace(NamedTuple):
    """Seconds per run, after the first runs, one per worker, and from the start of the workers."""

    steady: float
    started: float


Timer = Callable[[int, int, str], Pace]  # of runs at once, their number, and the mode of their steps


def _gain(timed: Timer, sizes: Sizes, mode: str, *, started: bool = False) -> float:
    """Return the throughput of runs at once relative to one after another, whose steps are captured or not."""
    alone, at_once = timed(1, sizes.few, mode), timed(sizes.at_once, sizes.runs, "auto")
    return alone.steady / (at_once.started if started else at_once.steady)


def _over_core(timer: Callable[..., Timer], device: torch.device) -> float:
    """Return the duration of a run on a device relative to that of the same run on one CPU core."""
    with one_thread():
        on_device, on_core = (timer(device=each)(1, 2, "auto") for each in (device, torch.device("cpu")))
    return on_device.steady / on_core.steady


class _Ends(ProgressListener):
    """Records the end time of every run."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def end(self, record: RunRecord) -> None:
        self.times.append(time.perf_counter())


def _timer(kind: str, shift: str, settings: dict[str, Any], sizes: Sizes, device: torch.device, folder: Path) -> Timer:
    """Return a function that trains a number of runs, at most `jobs` at once, and returns the seconds per run."""
    workspace = Workspace(world(kind, shift, domains=DOMAINS + 1, size=sizes.rows), device=device)
    workspace.cache = folder / "cache"
    target = {"plan": "leave-one-out", "plan.targets": [workspace.dataset.domains[-1]]}
    options = {**settings, **target, "batch": 16, "steps": sizes.run_steps, "every": max(1, sizes.run_steps // 3)}

    @cache
    def timed(jobs: int, count: int, mode: str) -> Pace:
        workspace.out = Path(tempfile.mkdtemp(dir=folder))
        spec = make_spec(workspace.dataset, device=workspace.device, settings={**options, "compile": mode})
        specs = [replace(spec, seed=seed) for seed in range(count)]
        ends, start = _Ends(), time.perf_counter()
        run_all(resolve(Request(specs=specs), workspace), workspace, engine=Local(jobs), watch=ends)
        return pace(start, ends.times, jobs)

    timed(1, 2, "auto")  # fills the caches
    return timed


def pace(start: float, ends: Sequence[float], jobs: int) -> Pace:
    """Return the seconds per run from the start and the ends of all runs, of which `jobs` were at once."""
    assert len(ends) > jobs, "every worker needs a second run"
    return Pace((ends[-1] - ends[jobs - 1]) / (len(ends) - jobs), (ends[-1] - start) / len(ends))
