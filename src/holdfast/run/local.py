"""Engine for this machine: one run after another in this process, or several at once in worker processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.stopping import stop_all_if_requested, stop_if_requested
from holdfast.protocols.resume import stop_at_signal
from holdfast.record import RunRecord
from holdfast.run.gpu_memory import Capacity
from holdfast.run.jobs import MAX_ATTEMPTS, Job, Keep, Outcomes, cache_inputs, keep_all, run_job, worker_workspace
from holdfast.run.mps import mps_daemon, with_share
from holdfast.run.progress import ProgressListener
from holdfast.run.template import Template, cores, environment, shared_template
from holdfast.run.workspace import Workspace

STOP_SECONDS = 60.0  # time that a worker has to finish its step and save
POLL_SECONDS = 0.2  # interval at which a request to stop is noticed
KERNELS = "holdfast.nn.kernels.memory"  # of these, every process on a GPU runs one to see whether Triton works
LOADED = ("holdfast.nn.", "transformers.models.")  # packages of which workers need what this process has imported


@dataclass(frozen=True)
class Local:
    """At most `jobs` runs at once; 0 means one per core, or the number of runs that fit the memory of the GPUs."""

    jobs: int = 1

    def count(self, jobs: int, device: torch.device) -> int:
        """Return the number of runs at once."""
        return max(1, min(self.jobs or parallel_runs(device), jobs))

    def run(
        self, jobs: Sequence[Job], workspace: Workspace, *, watch: ProgressListener, keep: Keep = keep_all
    ) -> Outcomes:
        count = self.count(len(jobs), workspace.device)
        with stop_at_signal():
            if count > 1:
                with mps_daemon(workspace.device, count) as variables:
                    options = {"count": count, "measured": not self.jobs, "variables": variables}
                    yield from _in_workers(jobs, workspace, watch=watch, keep=keep, **options)
                return
            cache_inputs([job for job in jobs if job.spec.tune == "frozen"], workspace)
            for job in jobs:
                stop_all_if_requested()
                if not keep(job):
                    continue
                watch.begin(job.name, job.steps)
                yield job, run_job(job, workspace, tick=watch.step)


def parse_jobs(text: str) -> Local:
    """Return the engine for the value of `--jobs`: a number or `auto`."""
    if text == "auto":
        return Local(0)
    if not text.isdecimal() or not int(text):
        raise BadInput(f"--jobs must be auto or a number of runs at once, at least 1; got '{text}'")
    return Local(int(text))


def parallel_runs(device: torch.device) -> int:
    """Return the largest number of runs at once: one per core, at least one per GPU, whose memory may allow fewer."""
    return max(cores(), torch.cuda.device_count()) if device.type == "cuda" else cores()


def _in_workers(
    jobs: Sequence[Job], workspace: Workspace, *, watch: ProgressListener, count: int, keep: Keep,
    measured: bool, variables: Mapping[str, str],
) -> Outcomes:  # fmt: skip
    """Yield outcomes as they arrive; a job whose worker died is queued again and resumes from its checkpoint.

    With `measured`, workers on a GPU start as its memory allows, up to `count`.
    """
    threads = max(1, cores() // count)
    template = _template(jobs, threads, workspace.device)  # imports while this process fills the cache
    shared = worker_workspace(jobs, workspace, threads=threads)

    def start(index: int, workers: int) -> _Worker:
        return _Worker(shared, index, variables=with_share(variables, workers, len(jobs)), template=template)

    yield from _distribute(jobs, start, workspace, watch=watch, count=count, keep=keep, measured=measured)


def _distribute(
    jobs: Sequence[Job], start: Callable[[int, int], _Worker], workspace: Workspace, *, watch: ProgressListener,
    count: int, keep: Keep, measured: bool,
) -> Outcomes:  # fmt: skip
    """Give jobs to workers as they become free and yield the outcomes; `start` starts the worker i of n."""
    waiting, deaths = deque(jobs), Counter()
    gpus = torch.cuda.device_count() if measured and workspace.device.type == "cuda" else count
    capacity = Capacity(gpus, count)
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.job for worker in workers):
            stop_if_requested()
            idle = sum(worker.job is None for worker in workers)
            for index in range(len(workers), min(capacity.count, len(workers) - idle + len(waiting))):
                workers.append(start(index, capacity.count))
            for worker in workers:
                while worker.job is None and waiting:
                    if keep(waiting[0]):
                        worker.begin(waiting[0])
                    waiting.popleft()
            if not any(worker.job for worker in workers):
                return
            ready = wait([worker.connection for worker in workers if worker.job], POLL_SECONDS)
            for worker in [worker for worker in workers if worker.connection in ready]:
                job = worker.job
                assert job is not None
                try:
                    kind, content = worker.connection.recv()
                except (EOFError, ConnectionError):
                    worker.close()
                    workers[workers.index(worker)] = start(worker.index, capacity.count)
                    deaths[job.id] += 1
                    if deaths[job.id] >= MAX_ATTEMPTS:
                        yield job, job.worker_died()
                    else:
                        waiting.appendleft(job)
                    continue
                if kind == "steps":
                    watch.worker_steps(job.id, job.name, content, job.steps)
                elif kind == "memory":
                    capacity.add(worker.index, content)
                elif kind == "failed":
                    raise RuntimeError(f"{job.name} failed in a worker:\n{content}")
                else:
                    worker.job = None
                    watch.worker_steps(job.id, job.name, job.steps, job.steps)
                    if isinstance(content, RunRecord):
                        watch.begin(job.name, job.steps)
                    yield job, content
    finally:
        _stop(workers)


def _template(jobs: Sequence[Job], threads: int, device: torch.device) -> Template | None:
    """Return the process that forks workers, with the modules of these jobs; None where workers are not forked."""
    if (template := shared_template(threads)) is None:
        return None
    entries = [entry for job in jobs for _, entry in catalog.unwrap("methods", job.spec.method)]
    entries += [catalog.lookup("encoders", job.spec.encoder) for job in jobs]
    modules = [name for entry in entries if (name := entry.target.partition(":")[0]).startswith("holdfast.")]
    modules += [KERNELS] if device.type == "cuda" else []
    template.load(dict.fromkeys([*modules, *(name for name in list(sys.modules) if name.startswith(LOADED))]))
    return template


class _Worker:
    """A worker process, the connection to it, and its current job."""

    def __init__(
        self, workspace: Workspace, index: int, *, variables: Mapping[str, str], template: Template | None = None
    ) -> None:
        assert workspace.worker is not None
        self.index = index
        self.job: Job | None = None
        self.connection, other_end = Pipe()
        own = {**_gpu(workspace, index), **variables}
        forked = None if template is None else template.fork(other_end.fileno(), own)
        self.process = forked or subprocess.Popen(
            [sys.executable, "-m", "holdfast.run.worker", str(other_end.fileno())],
            pass_fds=[other_end.fileno()],
            env={**environment(workspace.worker.threads), **own},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the driver only, which stops its workers
        )
        other_end.close()
        _send(self.connection, workspace)

    def begin(self, job: Job) -> None:
        self.job = job
        _send(self.connection, job)

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


def _send(connection: Connection, message: Any) -> None:
    content = pickle.dumps(message)  # `send` would share the memory of tensors, which works with child processes only
    with suppress(ConnectionError):  # the worker died, which the next `recv` notices
        connection.send_bytes(content)


def _gpu(workspace: Workspace, index: int) -> dict[str, str]:
    """Return the variable that assigns one of the visible GPUs to a worker."""
    if workspace.device.type != "cuda":
        return {}
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    return {"CUDA_VISIBLE_DEVICES": gpus.split(",")[index % len(gpus.split(","))]}


def _stop(workers: Sequence[_Worker]) -> None:
    """Let workers with a job save it, then end all processes."""
    try:
        for worker in workers:
            _send(worker.connection, None)
        deadline = time.monotonic() + STOP_SECONDS
        for worker in workers:
            if worker.job is not None:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.close()
