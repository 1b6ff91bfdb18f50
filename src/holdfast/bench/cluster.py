"""What a run costs on a cluster: tiny runs on two Ray nodes of this machine, against what fewer of them foretell.

T = a + (R + o n) / s for n runs on s slots: R is what the runs say they took, a what beginning costs, o what a slot
spends beside each run; a and o come from 20 and 80 runs, and 200 check them.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.bench.engines import tiny
from holdfast.bench.harness import Result, one_thread
from holdfast.bench.nodes import cluster
from holdfast.engines.many import run_all
from holdfast.engines.ray import Ray

FEW, SOME, MANY = 20, 80, 200
SLOTS = 2  # nodes of one CPU each


@dataclass(frozen=True)
class Seen:
    """One sweep: its seconds, the driver's own, the seconds that its runs say they took, and the bytes it left."""

    seconds: float
    driver: float
    inside: float
    stored: int


def run(device: torch.device) -> list[Result]:
    """How well fewer runs foretell 200, and what each run costs whom."""
    with one_thread(), cluster((1,) * SLOTS) as made, _connected(made.address):
        _sweep(made.address, 2 * 4, device)  # the nodes' processes have begun and have read the code
        few, some, many = (_sweep(made.address, count, device) for count in (FEW, SOME, MANY))
    beside = (SLOTS * (some.seconds - few.seconds) - (some.inside - few.inside)) / (SOME - FEW)
    start = few.seconds - (few.inside + FEW * beside) / SLOTS
    foretold = start + (many.inside + MANY * beside) / SLOTS
    return [
        Result(f"{MANY} runs: how far from foretold, as a share", abs(many.seconds / foretold - 1), bar=0.25),
        Result(f"{MANY} runs, s", many.seconds, bar=None),
        Result("foretold, s", foretold, bar=None),
        Result("beginning, ms", 1000 * start, bar=None),
        Result("a run in its worker, ms", 1000 * many.inside / MANY, bar=None),
        Result("beside a run, ms of a slot", 1000 * beside, bar=None),
        Result("driver's CPU a run, ms", 1000 * many.driver / MANY, bar=None),
        Result("record, bytes", many.stored / MANY, bar=None),
    ]


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """One connection for all sweeps, so that each begins alike."""
    ray = importlib.import_module("ray")
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def _sweep(address: str, count: int, device: torch.device) -> Seen:
    specs, shop = tiny(count, device)
    with tempfile.TemporaryDirectory() as folder:
        start, own = time.perf_counter(), time.process_time()
        done = run_all(specs, shop, Path(folder), engine=Ray(address))
        took, driver = time.perf_counter() - start, time.process_time() - own
        stored = sum(path.stat().st_size for path in (Path(folder) / "records").iterdir())
    assert len(done) == count
    return Seen(took, driver, sum(record.cost["seconds"] for record in done), stored)
