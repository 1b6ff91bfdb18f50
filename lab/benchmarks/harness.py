"""Measurement shared by all benchmarks: two implementations timed in alternation, and the median of their ratios."""

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.tape import ScopedValue


@dataclass(frozen=True, slots=True)
class Result:
    """Ratio of one case to its reference and its target: an upper bound, or a lower bound with `at_least`.

    A case without a target is informative. A case that failed has no ratio and an error message.
    """

    case: str
    ratio: float
    bar: float | None
    at_least: bool = False
    error: str = ""

    def __post_init__(self) -> None:
        if on_result.value is not None:
            on_result.value(self)

    @property
    def ok(self) -> bool:
        if self.error or self.bar is None:
            return not self.error
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar

    def bar_text(self) -> str:
        return "-" if self.bar is None else f"{'at least' if self.at_least else 'at most'} {self.bar}"

    def json(self) -> dict[str, Any]:
        measured = {"ratio": None if self.error else round(self.ratio, 4), "bar": self.bar, "ok": self.ok}
        bound = {"at_least": True} if self.at_least else {}
        return {"case": self.case, **measured, **bound, **({"error": self.error} if self.error else {})}


on_result = ScopedValue[Callable[[Result], None]]()  # called with each result as soon as it is measured
on_time = ScopedValue[Callable[[str], None]]()  # called with the description of each measurement of some minutes


def report_time(what: str, duration: float) -> None:
    """Report the seconds of one of several long measurements, before the result is known."""
    if on_time.value is not None:
        on_time.value(f"{what}: {duration:.1f} s")


def hardware(device: torch.device) -> str:
    """Describe the machine of a record: the GPU, or the processor and its cores, and the version of torch."""
    cores = os.cpu_count() or 1
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, {cores} cores"
    return f"{name}, torch {torch.__version__}"


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, so that waiting threads do not distort the measurement."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def repeated(function: Callable[[], object], count: int) -> Callable[[], None]:
    """Return a function that calls `function` this number of times."""

    def run() -> None:
        for _ in range(count):
            function()

    return run


def passes(
    module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor, count: int = 1
) -> Callable[[], None]:
    """Return forward and backward passes with gradients of the input and every parameter."""
    leaves = (x, *module.parameters())
    return repeated(lambda: torch.autograd.grad(forward(x), leaves, grad), count)


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """Return the duration of one call including queued device work; process time for one CPU thread."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    alone = device.type == "cpu" and torch.get_num_threads() == 1  # excludes other processes on the machine
    clock = time.process_time if alone else time.perf_counter
    start = clock()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


def peak(make: Callable[[], Callable[[], object]], device: torch.device) -> float:
    """Return the peak GPU memory of building and running some work, in bytes."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    make()()
    return float(torch.cuda.max_memory_allocated(device) - before)


def busy(function: Callable[[], object], device: torch.device) -> float:
    """Return the GPU time of the kernels of one call, without launch overhead."""
    from torch.profiler import ProfilerActivity, profile

    function()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        function()
        torch.cuda.synchronize(device)
    return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6


def attempt(case: str, measure: Callable[[], float], *, bar: float | None, at_least: bool = False) -> Result:
    """Measure one case; a failure becomes its error message, so that the other cases are still measured."""
    try:
        return Result(case, measure(), bar=bar, at_least=at_least)
    except Exception as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Result(case, float("nan"), bar=bar, at_least=at_least, error=message[:400])


def captured(function: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Capture the work as one CUDA graph, so that the device is measured without launch overhead from Python."""
    if device.type != "cuda":
        return function
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def ratio(
    candidate: Callable[[], object], reference: Callable[[], object], device: torch.device, *, rounds: int = 15
) -> float:
    """Return the median over rounds of candidate / reference; both are warmed up and their order alternates."""
    candidate()
    reference()
    ratios = []
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            pair = (candidate, reference) if i % 2 else (reference, candidate)
            times = {f: seconds(f, device) for f in pair}
            ratios.append(times[candidate] / times[reference])
    finally:
        gc.enable()
    return median(ratios)
