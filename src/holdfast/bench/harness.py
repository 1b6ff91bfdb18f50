"""How every bench measures: two ways of doing one thing, turn by turn in one run, and the median of their ratios."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from holdfast.core.tape import ScopedValue


@dataclass(frozen=True, slots=True)
class Result:
    """One case: its ratio to the reference and the bar it must keep (at most, or at least); None is only told.

    A case that could not be measured has no ratio and says why.
    """

    case: str
    ratio: float
    bar: float | None
    at_least: bool = False
    error: str = ""

    def __post_init__(self) -> None:
        if heard.value is not None:
            heard.value(self)

    @property
    def ok(self) -> bool:
        if self.error:
            return False
        if self.bar is None:
            return True
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar

    def bar_text(self) -> str:
        return "-" if self.bar is None else f"{'at least' if self.at_least else 'at most'} {self.bar}"

    def json(self) -> dict[str, Any]:
        if self.error:
            return {"case": self.case, "ratio": None, "bar": self.bar, "ok": False, "error": self.error}
        return {"case": self.case, "ratio": round(self.ratio, 4), "bar": self.bar, "ok": self.ok}


heard = ScopedValue[Callable[[Result], None]]()  # who is told of each case as soon as it is measured


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch uses one thread inside: two that wait for each other measure the machine, and not what they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """How long one call takes, the device's queue included; on one CPU thread the time that it was given a core."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    alone = device.type == "cpu" and torch.get_num_threads() == 1  # then others' work on the machine need not count
    clock = time.process_time if alone else time.perf_counter
    start = clock()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


def peak(make: Callable[[], Callable[[], object]], device: torch.device) -> float:
    """The most memory of a GPU that some work needs, what it is made of included."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    make()()
    return float(torch.cuda.max_memory_allocated(device) - before)


def busy(function: Callable[[], object], device: torch.device) -> float:
    """How long the kernels of a GPU take that one call asks for, by its own count: the work without the asking."""
    from torch.profiler import ProfilerActivity, profile

    function()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as heard:
        function()
        torch.cuda.synchronize(device)
    return sum(event.self_device_time_total for event in heard.key_averages()) / 1e6


def attempt(case: str, measure: Callable[[], float], *, bar: float | None) -> Result:
    """One case; where it fails, what a compiler or a small device may do, the others are measured all the same."""
    try:
        return Result(case, measure(), bar=bar)
    except Exception as error:
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Result(case, float("nan"), bar=bar, error=told[:400])


def captured(function: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """On a GPU the same work as one recorded graph, so that the device is measured and not Python's asking for it."""
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
    mine: Callable[[], object], reference: Callable[[], object], device: torch.device, *, rounds: int = 15
) -> float:
    """Median over rounds of mine / reference; both are warmed up, and their order changes every round."""
    mine()
    reference()
    found = []
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            pair = (mine, reference) if i % 2 else (reference, mine)
            times = {f: seconds(f, device) for f in pair}
            found.append(times[mine] / times[reference])
    finally:
        gc.enable()
    return median(found)
