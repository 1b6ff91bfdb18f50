"""Commands in processes of their own, which tests stop, kill or wait for."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "holdfast"]


def start(folder: Path, *words: object, command: list[str] = COMMAND, session: bool = False, **env: str):
    """Start a command in a folder with one thread per process and these environment variables."""
    return subprocess.Popen(
        [*command, *map(str, words)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=session, env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )  # fmt: skip


def finish(folder: Path, *words: object, command: list[str] = COMMAND, **env: str) -> tuple[int, str, str]:
    """Run a command to its end; return its exit code and what it printed."""
    process = start(folder, *words, command=command, **env)
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def wait_for(condition: Callable[[], object], process: subprocess.Popen, seconds: float = 200.0) -> None:
    """Wait until the condition holds while the process is still running."""
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()
