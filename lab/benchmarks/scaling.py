"""Benchmark `scaling`: how cost grows with steps, batch, domains, slots, experts and runs at once.

The ratio of a case is the exponent p of the time c v^p, fitted to times at several values v: 1 is proportional, 0 is
constant. For runs at once it is the exponent of the throughput, where 1 is perfect.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import generator
from holdfast.core.store import TensorStore
from holdfast.data.batches import Batches, Examples
from holdfast.data.splits import Part
from holdfast.engines.work import Local
from holdfast.methods.base import Method
from holdfast.methods.erm import ERM
from holdfast.methods.penalties import Penalized
from holdfast.nn.experts.layer import SparseMoE
from holdfast.nn.memory.key_value import KeyValueMemory
from holdfast.nn.model import Model
from holdfast.train.fit import fit, newest
from lab.benchmarks.engines import EACH, sweep
from lab.benchmarks.harness import Result, one_thread, passes, seconds
from lab.benchmarks.networks import classifier, trainer

WIDTH, HIDDEN, ROUNDS = 256, 512, 5
STEPS, BATCHES, DOMAINS = (100, 200, 400, 800), (128, 256, 512, 1024), (2, 4, 8, 16)
SLOTS, EXPERTS, QUERIES = (256, 512, 1024, 2048), (2, 4, 8, 16), 512
JOBS, RUNS = (1, 2, 4), (2 * EACH, 10 * EACH)  # the difference of few and many runs excludes the start of workers
AT_MOST = 1.15  # target of costs that should be proportional


def run(device: torch.device) -> list[Result]:
    """Measure the exponent of every cost."""
    torch.manual_seed(0)
    with one_thread():
        layers = (
            ("steps of a run", STEPS, partial(_run, device=device), AT_MOST),
            ("examples of a step", BATCHES, partial(_step, domains=1, device=device), AT_MOST),
            (
                "domains of a step (coral)",
                DOMAINS,
                lambda domains: _step(32 * domains, domains, device, partial(Penalized, penalty="coral")),
                AT_MOST,
            ),
            ("slots of a memory read", SLOTS, partial(_read, device=device), AT_MOST),
            ("experts of a layer, 1 per token", EXPERTS, partial(_experts, device=device), None),
        )
        results = [Result(name, _exponent(values, make, device), bar=bar) for name, values, make, bar in layers]
        at_once = [_throughput(jobs, device) for jobs in JOBS]
    return [*results, Result("throughput by runs at once", slope(JOBS, at_once), bar=None)]


def _throughput(jobs: int, device: torch.device) -> float:
    """Return the runs per second of `jobs` runs at once, after the start of their workers."""
    sweep(Local(jobs), RUNS[0], device)  # starts the process that forks them
    few, many = (sweep(Local(jobs), count, device).seconds for count in RUNS)
    return (RUNS[1] - RUNS[0]) / max(many - few, 1e-6)


def slope(values: Sequence[float], costs: Sequence[float]) -> float:
    """Return the exponent p of costs c v^p, by least squares of their logarithms."""
    x, y = np.log(np.asarray(values, dtype=float)), np.log(np.asarray(costs, dtype=float))
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def _exponent(values: Sequence[int], make: Callable[[int], Callable[[], object]], device: torch.device) -> float:
    """Return the exponent of the median times; all values are measured in turn, in several rounds."""
    works = [make(value) for value in values]
    for work in works:
        work()
    rounds = [[seconds(work, device) for work in works] for _ in range(ROUNDS)]
    exponent = slope(values, [median(times) for times in zip(*rounds, strict=True)])
    assert math.isfinite(exponent)
    return exponent


def _network(device: torch.device) -> Model:
    body = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    return classifier(body, HIDDEN, 2, device)


def _data(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (count,), generator=rng)
    return torch.randn(count, WIDTH, generator=rng).to(device), y.to(device)


def _run(steps: int, device: torch.device) -> Callable[[], object]:
    x, y = _data(600, device)
    examples = Examples(TensorStore(x), y, ["a", "b"], device=device)
    splits = [Part("a", np.arange(300)), Part("b", np.arange(300, 600))]

    def train() -> None:
        method = trainer(_network(device))
        batches = Batches(examples, splits, 32, generator=generator(0, "batches"))
        fit(method, batches, lambda: ({"a": 0.0}, {"a": 0.0}), steps=steps, every=steps, choose=newest)

    return train


def _step(count: int, domains: int, device: torch.device, make: Callable[..., Method] = ERM) -> Callable[[], object]:
    x, y = _data(count, device)
    method = trainer(_network(device), make)
    batch = DomainBatch(x, y, tuple(range(domains)), (count // domains,) * domains)
    return lambda: method.step(batch)


def _read(slots: int, device: torch.device) -> Callable[[], object]:
    memory = KeyValueMemory(WIDTH, slots=slots).to(device)
    z = torch.randn(QUERIES, WIDTH, device=device, requires_grad=True)
    return passes(memory, lambda z: memory.read(z).content, z, torch.randn(QUERIES, WIDTH, device=device))


def _experts(count: int, device: torch.device) -> Callable[[], object]:
    layer = SparseMoE(WIDTH, HIDDEN, count=count, top=1).to(device)
    u = torch.randn(QUERIES, WIDTH, device=device, requires_grad=True)
    grad = torch.randn(QUERIES, WIDTH, device=device)
    leaves = [u, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(u), leaves, grad, allow_unused=True)
