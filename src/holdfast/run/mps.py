"""CUDA MPS for several runs on one GPU: without it the GPU alternates between processes instead of sharing its cores.

The daemon belongs to one command: it has its own folders, listens for the workers of this command and ends with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from holdfast.core.errors import warn

CONTROL = "nvidia-cuda-mps-control"
START_SECONDS, STOP_SECONDS = 10.0, 10.0
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MANY, WAVES = 8, 2  # workers per GPU, and runs per worker, from which each worker has a share of the GPU's cores
OVERLAP = 2.0  # sum of these shares
OFF = "HOLDFAST_MPS"  # 0 disables it


def wanted(device: torch.device, count: int, environment: dict[str, str]) -> bool:
    """Whether workers share a GPU and no daemon serves them yet."""
    if device.type != "cuda" or environment.get(OFF) == "0" or PIPES in environment:
        return False
    return count > _gpus(environment)


def with_share(variables: Mapping[str, str], workers: int, runs: int) -> dict[str, str]:
    """Add the share of a GPU's cores that each of many workers may use to the variables of a daemon.

    Libraries then choose kernels for a smaller GPU, so that more of them run at the same time. The last run, alone,
    still has only this share: few workers, and those with few runs, use the whole GPU.
    """
    each = workers / max(1, _gpus(os.environ))
    if not variables or each < MANY or runs < WAVES * workers or SHARE in os.environ:
        return dict(variables)
    return {**variables, SHARE: str(round(100 * OVERLAP / each))}


def _gpus(environment: Mapping[str, str]) -> int:
    gpus = environment.get("CUDA_VISIBLE_DEVICES")
    return len(gpus.split(",")) if gpus else torch.cuda.device_count()


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
