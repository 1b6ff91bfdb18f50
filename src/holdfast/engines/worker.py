"""Worker process of the local engine: receives a workspace and then jobs, and sends steps and outcomes.

It ends when the driver sends None or is gone, after saving the current run.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import threadpoolctl
import torch

from holdfast.core.forking import ORPHAN_SECONDS
from holdfast.core.stopping import TIME, Interrupted, request_stop
from holdfast.engines.gpu import MEASURED_STEPS, measure
from holdfast.engines.work import Fill, InputCache, StepReporter, outcome_of
from holdfast.train.run import Job

PROGRESS_INTERVAL = 0.5  # interval between two reports of the steps of a run


def main(descriptor: int) -> None:
    """Run jobs until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    try:
        workspace = connection.recv()
    except (EOFError, ConnectionError):  # the driver ended before it sent one
        return
    threading.Thread(target=_initialise, args=(workspace.device,), daemon=True).start()
    jobs: queue.SimpleQueue[Job | Fill | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, jobs), daemon=True).start()
    workspace.worker.install()
    threadpoolctl.threadpool_limits(workspace.worker.threads)  # libraries that are loaded later read the environment
    workspace.on_encoding = lambda done, total: _send(connection, "encoded", (done, total))
    cache = InputCache(workspace)
    while (job := jobs.get()) is not None:
        report = _Reports(connection, workspace.device)
        try:
            if isinstance(job, Fill):
                _send(connection, "done", cache.fill(job.job))
                continue
            outcome = outcome_of(job, workspace, tick=StepReporter(report.steps, PROGRESS_INTERVAL))
        except Interrupted:
            return
        report.memory()
        _send(connection, "done", outcome)


def _initialise(device: torch.device) -> None:
    """Initialise a GPU, which takes a second, while the first run reads its examples and weights."""
    with suppress(RuntimeError):  # the run fails with the same error
        torch.empty(1, device=device)


class _Reports:
    """Sends the progress of a run, and the memory of this process once a few steps are done."""

    def __init__(self, connection: Connection, device: torch.device) -> None:
        self.connection, self.device, self.measured = connection, device, False

    def steps(self, count: int) -> None:
        _send(self.connection, "steps", count)
        if count >= MEASURED_STEPS and not self.measured:
            self.memory()

    def memory(self) -> None:
        self.measured = True
        with suppress(RuntimeError):  # the GPU does not answer after an error
            if (usage := measure(self.device)) is not None:
                _send(self.connection, "memory", usage)


def _receive(connection: Connection, jobs: queue.SimpleQueue[Job | Fill | None]) -> None:
    """Queue jobs while another may be running, so that a request to stop takes effect at once.

    Without a driver, the process ends after some seconds even if its run does not.
    """
    job, orphaned = None, False
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            job, orphaned = None, True
        if job == TIME:  # the driver's deadline was moved forward
            request_stop(TIME)
            continue
        jobs.put(job)
        if job is None:
            break
    request_stop()
    if orphaned:
        time.sleep(ORPHAN_SECONDS)
        os._exit(1)


def _send(connection: Connection, kind: str, content: Any) -> None:
    with suppress(OSError):  # the driver is gone; the run is saved, because that also requests a stop
        connection.send((kind, content))


if __name__ == "__main__":
    main(int(sys.argv[1]))
