"""Choose the number of concurrent runs per GPU by measured memory: one run starts, and others join if they fit.

Every worker reports the memory that its process holds after a few steps and at the end of every run. Further workers
start when all present ones have reported, so that memory that is about to be used does not count as free.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch

MEASURED_STEPS = 10  # of the first run, after which its memory is measured; its CUDA graphs exist by then
CONTEXT_BYTES = 600 * 2**20  # of a process on a GPU, besides its tensors
MARGIN = 1.3  # validation and other methods of a comparison may need more than the first steps
SPARE = 0.05  # share of the GPU memory that stays free


@dataclass(frozen=True)
class Usage:
    """Bytes of GPU memory that a process holds, that no process uses, and that the GPU has."""

    held: int
    free: int
    total: int


def measure(device: torch.device) -> Usage | None:
    """Return the memory of this process on its GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return Usage(torch.cuda.max_memory_reserved(device), free, total)


class Capacity:
    """Number of workers that fit the GPUs, from at first one per GPU up to `limit`."""

    def __init__(self, gpus: int, limit: int) -> None:
        self.gpus, self.limit = max(1, gpus), limit
        self.count = min(self.gpus, limit)
        self.reports: dict[Hashable, Usage] = {}

    def add(self, worker: Hashable, usage: Usage) -> None:
        """Take the report of one of `count` workers into account; raise `count` if all have reported."""
        self.reports[worker] = usage
        if len(self.reports) < self.count or self.count >= self.limit:
            return
        need = MARGIN * (max(report.held for report in self.reports.values()) + CONTEXT_BYTES)
        available = usage.free - SPARE * usage.total
        more = self.gpus * max(0, int(available / need))
        self.count = min(self.limit, self.count + more)
