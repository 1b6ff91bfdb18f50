"""Many runs on this machine: one after another in this process, or several at once in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import BadInput
from holdfast.protocols.resume import stop_all_if_requested, stop_at_signal, stop_if_requested
from holdfast.record import RunRecord
from holdfast.run.assemble import Workspace
from holdfast.run.jobs import TRIES, Job, Kit, Outcomes, do, share_features
from holdfast.run.progress import ProgressListener


@dataclass(frozen=True)
class Local:
    """So many runs at once; 0 is one a core, or on GPUs one a GPU."""

    jobs: int = 1

    def run(
        self, jobs: Sequence[Job], workspace: Workspace, out: Path, *, watch: ProgressListener, analyse: Sequence[str]
    ) -> Outcomes:
        count = min(self.jobs or places(workspace.device), len(jobs))
        if count > 1:
            yield from at_once(
                jobs, workspace, out, watch=watch, analyse=analyse, count=count, threads=max(1, cores() // count)
            )
            return
        with stop_at_signal():
            for job in jobs:
                stop_all_if_requested()
                watch.begin(job.name, job.steps)
                yield job, do(job, workspace, out, tick=watch.step, analyse=analyse)


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


PATIENCE = 60.0  # seconds that a worker which was asked to stop may take to end its step and save
LOOK = 0.2  # seconds between looks at whether we were asked to stop


def at_once(
    jobs: Sequence[Job],
    workspace: Workspace,
    out: Path,
    *,
    watch: ProgressListener,
    analyse: Sequence[str],
    count: int,
    threads: int,
) -> Outcomes:
    """The outcome of each job as it comes; a job whose worker died is asked for again, and goes on where it was."""
    with stop_at_signal():
        share_features(jobs, workspace)
        kit = Kit.of(workspace, out, analyse, threads=threads)
        waiting, died = deque(jobs), Counter()
        crew = [_Worker(kit, at) for at in range(count)]
        try:
            while waiting or any(worker.job for worker in crew):
                stop_if_requested()
                for worker in crew:
                    if worker.job is None and waiting:
                        worker.begin(waiting.popleft())
                ready = wait([worker.line for worker in crew if worker.job], LOOK)
                for worker in [each for each in crew if each.line in ready]:
                    job = worker.job
                    assert job is not None
                    try:
                        kind, told = worker.line.recv()
                    except (EOFError, ConnectionError):
                        crew[crew.index(worker)] = worker.anew()
                        died[job.id] += 1
                        if died[job.id] >= TRIES:
                            yield job, job.lost()
                        else:
                            waiting.appendleft(job)
                        continue
                    if kind == "steps":
                        watch.worker_steps(job.id, job.name, told, job.steps)
                    elif kind == "broken":
                        raise RuntimeError(f"{job.name} failed in a worker:\n{told}")
                    else:
                        worker.job = None
                        watch.worker_steps(job.id, job.name, job.steps, job.steps)
                        if isinstance(told, RunRecord):
                            watch.begin(job.name, job.steps)
                        yield job, told
        finally:
            _end(crew)


class _Worker:
    """One process, the line to it, and the job that it has; begun when it gets its first job."""

    def __init__(self, kit: Kit, at: int) -> None:
        self.kit, self.at = kit, at
        self.job: Job | None = None
        self.line, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.run.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=_environment(kit, at),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C comes to the driver, which asks its workers to stop
        )
        theirs.close()
        _send(self.line, kit)

    def begin(self, job: Job) -> None:
        self.job = job
        _send(self.line, job)

    def anew(self) -> _Worker:
        self.close()
        return _Worker(self.kit, self.at)

    def close(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()


def _send(line: Connection, thing: Any) -> None:
    try:
        line.send(thing)
    except ConnectionError:
        return  # it died; the next look at the line finds that, and starts another


def _environment(kit: Kit, at: int) -> dict[str, str]:
    """Threads of its own share alone, and one of the GPUs that this process sees."""
    told = {name: str(kit.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    if kit.device == "cuda":
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        told["CUDA_VISIBLE_DEVICES"] = seen.split(",")[at % len(seen.split(","))]
    path = os.pathsep.join(dict.fromkeys(part for part in sys.path if part))
    return {**os.environ, **told, "PYTHONPATH": path}


def _end(crew: Sequence[_Worker]) -> None:
    """Let those that have a job save it, and leave no process behind."""
    try:
        for worker in crew:
            _send(worker.line, None)
        until = time.monotonic() + PATIENCE
        for worker in crew:
            if worker.job is not None:
                try:
                    worker.process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
    finally:
        for worker in crew:
            worker.close()
