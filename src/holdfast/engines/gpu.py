"""GPUs that several runs share: the number of runs that fit the memory, and CUDA MPS.

One run starts per GPU, and others join if they fit: every worker reports the memory that its process holds after a few
steps and at the end of every run. Further workers start when all present ones have reported, so that memory that is
about to be used does not count as free.

Without MPS a GPU alternates between processes instead of sharing its cores. The daemon belongs to one command: it has
its own folders, listens for the workers of this command and ends with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from holdfast.core.errors import warn
from holdfast.core.forking import cores

MAX_PER_GPU = 15  # workers, unless the user sets their number
MEASURED_STEPS = 10  # of the first run, after which its memory is measured; its CUDA graphs exist by then
CONTEXT_BYTES = 600 * 2**20  # of a process on a GPU, besides its tensors
MARGIN = 1.3  # validation and other methods of a comparison may need more than the first steps
SPARE = 0.05  # share of the GPU memory that stays free
CONTROL = "nvidia-cuda-mps-control"
START_SECONDS, STOP_SECONDS = 10.0, 10.0
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MANY = 8  # workers per GPU from which each has a share of the GPU's cores
OVERLAP = 2.0  # sum of these shares
OFF = "HOLDFAST_MPS"  # 0 disables it


def max_workers(device: torch.device) -> int:
    """Return the largest useful number of workers: one per core, at least one per GPU, and at most 15 per GPU."""
    if device.type != "cuda":
        return cores()
    gpus = max(1, torch.cuda.device_count())
    return min(max(cores(), gpus), MAX_PER_GPU * gpus)


def gpu_variable(device: torch.device, index: int) -> dict[str, str]:
    """Return the variable that assigns one of the visible GPUs to a worker."""
    if device.type != "cuda":
        return {}
    gpus = _gpus(os.environ)
    return {"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]}


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


def wanted(device: torch.device, count: int, environment: Mapping[str, str]) -> bool:
    """Whether workers share a GPU and no daemon serves them yet."""
    if device.type != "cuda" or environment.get(OFF) == "0" or PIPES in environment:
        return False
    return count > len(_gpus(environment))


def with_share(variables: Mapping[str, str], workers: int) -> dict[str, str]:
    """Add the share of a GPU's cores that each of many workers may use to the variables of a daemon.

    Libraries then choose kernels for a smaller GPU, so that more of them run at the same time. Few workers use the
    whole GPU.
    """
    each = workers / max(1, len(_gpus(os.environ)))
    if not variables or each < MANY or SHARE in os.environ:
        return dict(variables)
    return {**variables, SHARE: str(round(100 * OVERLAP / each))}


def _gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the visible GPUs."""
    names = environment.get("CUDA_VISIBLE_DEVICES")
    return names.split(",") if names else [str(number) for number in range(torch.cuda.device_count())]


@contextmanager
def mps_daemon(device: torch.device, count: int) -> Iterator[dict[str, str]]:
    """Start the daemon if `count` workers share a GPU; yield the variables that connect a worker to it.

    If it cannot be started, a warning states the reason, nothing is yielded and the workers take turns on the GPU.
    """
    if not wanted(device, count, dict(os.environ)):
        yield {}
        return
    program = shutil.which(CONTROL)
    if program is None:
        warn(f"CUDA MPS is not installed ({CONTROL}), so that concurrent runs take turns on the GPU: use fewer --jobs")
        yield {}
        return
    folder = Path(tempfile.mkdtemp(prefix="holdfast-mps-"))  # readable by this user only
    variables = {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}
    try:
        for path in variables.values():
            Path(path).mkdir()
        reason = _start(program, {**os.environ, **variables})
        if reason:
            warn(f"CUDA MPS cannot be started ({reason}), so that concurrent runs take turns on the GPU")
        yield {} if reason else variables
    finally:
        _stop(program, {**os.environ, **variables})  # also one that started but does not answer
        shutil.rmtree(folder, ignore_errors=True)


def _start(program: str, environment: dict[str, str]) -> str:
    """Start the daemon and ask it for its servers, which fails if it does not run; return why it failed."""
    try:
        # the daemon keeps the streams of the command open, so that they must not be pipes
        null = subprocess.DEVNULL
        subprocess.run([program, "-d"], env=environment, check=True, timeout=START_SECONDS, stdout=null, stderr=null)
        subprocess.run(
            [program], input="get_server_list\n", env=environment, check=True, timeout=START_SECONDS, text=True,
            stdout=null, stderr=null,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        return f"exit code {error.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return ""


def _stop(program: str, environment: dict[str, str]) -> None:
    with suppress(OSError, subprocess.SubprocessError):
        null = subprocess.DEVNULL
        subprocess.run(
            [program], input="quit\n", env=environment, timeout=STOP_SECONDS, text=True, stdout=null, stderr=null
        )
