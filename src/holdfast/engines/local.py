"""Many runs on this machine: one after another in this process, or several at once in processes of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from holdfast.assembly import Workshop
from holdfast.core.errors import BadInput
from holdfast.engines.job import Job, Outcomes, do
from holdfast.engines.processes import at_once
from holdfast.engines.watch import Watch
from holdfast.protocols.resume import stop_at_signal, stop_together


@dataclass(frozen=True)
class Local:
    """So many runs at once; 0 is one a core, or on GPUs one a GPU."""

    jobs: int = 1

    def run(self, jobs: Sequence[Job], shop: Workshop, out: Path, *, watch: Watch, analyse: Sequence[str]) -> Outcomes:
        count = min(self.jobs or places(shop.device), len(jobs))
        if count > 1:
            yield from at_once(
                jobs, shop, out, watch=watch, analyse=analyse, count=count, threads=max(1, cores() // count)
            )
            return
        with stop_at_signal():
            for job in jobs:
                stop_together()
                watch.begin(job.name, job.steps)
                yield job, do(job, shop, out, tick=watch.step, analyse=analyse)


def local(jobs: str) -> Local:
    """What `--jobs` says: a number, or auto."""
    if jobs == "auto":
        return Local(0)
    if not jobs.isdecimal() or not int(jobs):
        raise BadInput(f"--jobs takes a number of runs at once, 1 or more, or auto, not '{jobs}'")
    return Local(int(jobs))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def places(device: torch.device) -> int:
    """How many runs keep this machine busy without fighting."""
    return torch.cuda.device_count() if device.type == "cuda" else cores()
