"""Methods with faults, which engines must isolate."""

import ctypes
import os
import signal
from pathlib import Path

import threadpoolctl
import torch

from holdfast.methods.erm import ERM

PID_FILE = "FAULTY_PID_FILE"


class Raises(ERM):
    """Raise an unexpected error."""

    def step(self, batch):
        raise KeyError("no such thing")


class NotANumber(ERM):
    """Return a loss that is NaN."""

    def step(self, batch):
        return {"risk": super().step(batch)["risk"] * float("nan")}


class NeedsMemory(ERM):
    """Never fit into memory."""

    def step(self, batch):
        raise torch.OutOfMemoryError("out of memory")


class NeedsMemoryToEnd(ERM):
    """Lack memory outside of steps."""

    def end_stage(self, batches):
        raise torch.OutOfMemoryError("out of memory")


class Dies(ERM):
    """End the process."""

    def step(self, batch):
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Hangs(ERM):
    """Hang in a call that holds the interpreter's lock."""

    def step(self, batch):
        Path(os.environ[PID_FILE]).write_text(str(os.getpid()))
        ctypes.PyDLL(None).sleep(100)
        raise AssertionError


class CountsThreads(ERM):
    """Report the numbers of threads."""

    def step(self, batch):
        pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
        omp = int(os.environ.get("OMP_NUM_THREADS", "0"))
        threads = {"torch": torch.get_num_threads(), "most": max(pools), "omp": omp}
        return {**super().step(batch), **{name: torch.tensor(float(count)) for name, count in threads.items()}}
