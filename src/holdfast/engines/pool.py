"""Workers of the engine for this machine, which run several jobs at once.

A worker that is killed, for lack of memory or by a fault of a library, is replaced; its run is repeated once, with
nothing else running, and so is a run that lacks memory next to others or has an error of the GPU. No other run is
affected.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch

from holdfast import catalog
from holdfast.core.forking import ForkedProcess, ForkServer, cores, environment, shared_server
from holdfast.core.stopping import TIME
from holdfast.engines.gpu import Capacity, gpu_variable, mps_daemon, with_share
from holdfast.engines.work import (
    MAX_ATTEMPTS,
    Fill,
    InputCache,
    Local,
    check_signal,
    run_here,
    unimportable,
)
from holdfast.record import RunRecord
from holdfast.train.progress import ProgressListener
from holdfast.train.run import Failed, Job, NextJob, Outcome, Outcomes, Stopped
from holdfast.train.workspace import Workspace

STOP_SECONDS = 60.0  # time that a worker has to finish its step and save, after a signal
GRACE = 3.0  # time that a worker has to save after the deadline
POLL_SECONDS = 0.2  # interval at which a request to stop is noticed
WORKER = "holdfast.engines.worker"
KERNELS = "holdfast.accel.preload"  # every process on a GPU runs a kernel to see whether Triton works
LOADED = (
    "holdfast.nn.",
    "holdfast.accel.",
    "transformers.models.",
)  # packages of which workers need what this process has imported


class Pool:
    """The workers of one call of the engine, which starts them as jobs arrive."""

    def __init__(self, engine: Local, next_job: NextJob, workspace: Workspace, watch: ProgressListener) -> None:
        self.engine, self.next_job, self.workspace, self.watch = engine, next_job, workspace, watch
        self.limit = engine.workers(workspace.device)
        self.on_gpu = workspace.device.type == "cuda"
        grows = self.on_gpu and not engine.jobs
        self.capacity = Capacity(torch.cuda.device_count() if grows else self.limit, self.limit)
        self.cache, self.deadline = InputCache(workspace), workspace.deadline
        self.workers: list[_Worker] = []
        self.start: Callable[[int, bool, bool], _Worker] | None = None  # once a worker was needed
        self.pulled: deque[Job] = deque()  # before it was known whether there is another one
        self.held: deque[Job] = deque()  # that wait until a worker has computed their inputs
        self.alone: deque[Job] = deque()  # that run with nothing next to them
        self.attempts: Counter[str] = Counter()  # that were ended by a lack of memory or a kill, by job

    def run(self) -> Outcomes:
        """Give jobs to workers as they become free and yield the outcomes."""
        with ExitStack() as stack:
            try:
                while True:
                    yield from self._begin_jobs(stack)
                    if not self._busy():
                        return
                    yield from self._outcomes()
            finally:
                _stop_workers(self.workers)

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.job is not None]

    def _begin_jobs(self, stack: ExitStack) -> Outcomes:
        """Begin jobs while there is room; yield those that cannot run, and the ones that run in this process."""
        while True:
            check_signal()
            if self.alone:
                if self._busy():
                    return
                job = self.alone.popleft()
                if self.attempts[job.id]:
                    for worker in list(self.workers):  # idle ones, whose memory is then free
                        self._close(worker)
                    self._begin(job, stack, alone=True)
                    return
                yield job, run_here(job, self.workspace, self.watch)
            elif len(self._busy()) == self.capacity.count or (job := self._next()) is None:
                return
            elif self._runs_here(job) or (self.start is None and self._is_last()):
                self.alone.append(job)
            elif self.cache.lacks(job) and self.deadline.passed():
                yield job, Stopped()
            elif self.cache.lacks(job):
                self.held.append(job)
                if not any(worker.fills for worker in self.workers):
                    self._begin(job, stack, fills=True)
            else:
                self._begin(job, stack)

    def _runs_here(self, job: Job) -> bool:
        """Whether a job needs this process, or all cores."""
        large = self.limit > 1 and self.engine.at_once(job.spec, self.workspace) == 1
        return large or bool(unimportable(job.spec))

    def _next(self) -> Job | None:
        return self.pulled.popleft() if self.pulled else self.next_job()

    def _is_last(self) -> bool:
        """Whether no other job waits now."""
        if not self.pulled and (job := self.next_job()) is not None:
            self.pulled.append(job)
        return not self.pulled

    def _begin(self, job: Job, stack: ExitStack, *, alone: bool = False, fills: bool = False) -> None:
        """Give a job, or the computation of its inputs, to a free worker, which is started if there is none.

        On a CPU, inputs have a worker of their own, which has all cores.
        """
        wide = fills and not self.on_gpu
        worker = None if wide else next((worker for worker in self.workers if worker.job is None), None)
        if worker is None:
            if self.start is None:
                self.start = self._starter(stack, job)
            used = {worker.index for worker in self.workers}
            worker = self.start(next(i for i in range(self.limit + 1) if i not in used), alone, wide)
            self.workers.append(worker)
        limit = max(time.monotonic(), time.monotonic() + self.deadline.left()) + GRACE
        worker.begin(job, limit=limit, fills=fills)

    def _starter(self, stack: ExitStack, job: Job) -> Callable[[int, bool, bool], _Worker]:
        """Return the function that starts the worker with an index, alone or next to others, or with all cores."""
        threads = max(1, cores() // self.limit)
        server = shared_server(WORKER)
        if server is not None:
            server.load(_modules(job, self.workspace.device))
        content = pickle.dumps(self.workspace.for_worker(threads=threads))
        variables = stack.enter_context(mps_daemon(self.workspace.device, self.limit))

        def start(index: int, alone: bool, wide: bool) -> _Worker:
            own = variables if alone else with_share(variables, self.capacity.count)
            count = cores() if wide else threads  # libraries keep the number that they start with
            own = {**environment(count), **gpu_variable(self.workspace.device, index), **own}
            sent = pickle.dumps(self.workspace.for_worker(threads=count)) if wide else content
            return _Worker(sent, index, variables=own, server=shared_server(WORKER))

        return start

    def _outcomes(self) -> Outcomes:
        """Wait for messages of workers; yield the outcomes among them."""
        if self.deadline.passed():
            for worker in self._busy():
                worker.end_run()
        ready = wait([worker.connection for worker in self.workers], POLL_SECONDS)
        for worker in list(self.workers):
            job = worker.job
            if worker.connection in ready:
                kind, content = self._receive(worker)
                if job is None:  # it died, or its last message is about memory
                    continue
                if kind == "steps":
                    self.watch.worker_steps(job.id, job.name, content, job.steps)
                elif kind == "memory":
                    self.capacity.add(worker.index, content)
                elif kind == "encoded":
                    self.watch.encoding(*content)
                else:
                    worker.job = None
                    if not worker.fills or self._release(worker, content):
                        yield from self._end(job, worker, content)
            elif job is not None and time.monotonic() > worker.limit:
                self._close(worker)
                yield job, Stopped()

    def _release(self, worker: _Worker, outcome: Failed | Stopped | None) -> bool:
        """Let the jobs go on that waited for the inputs of one; return whether the outcome is that of this one."""
        worker.fills, job = False, self.held.popleft()
        if worker in self.workers and not self.on_gpu:
            self._close(worker)
        if outcome is None:
            self.cache.add(job, seconds=time.monotonic() - worker.began)
            self.pulled.append(job)
        self.pulled.extend(self.held)
        self.held.clear()
        return outcome is not None

    def _receive(self, worker: _Worker) -> tuple[str, Any]:
        """Return the next message of a worker; one that died has an outcome."""
        try:
            return worker.connection.recv()
        except (EOFError, OSError):
            return "done", _killed(self._close(worker))

    def _close(self, worker: _Worker) -> int:
        """End the process of a worker; return its exit code."""
        self.workers.remove(worker)
        return worker.end()

    def _end(self, job: Job, worker: _Worker, outcome: Outcome) -> Outcomes:
        """Yield the outcome of a job, or queue the job again."""
        failed = isinstance(outcome, Failed)
        if failed and self.on_gpu and outcome.kind in ("error", "memory", "device") and worker in self.workers:
            self._close(worker)  # its GPU memory may be fragmented, or its CUDA context may have failed
        if failed and outcome.kind in ("memory", "killed", "device"):
            if self.deadline.passed():
                yield job, Stopped()
                return
            self.attempts[job.id] += 1
            if self.attempts[job.id] < MAX_ATTEMPTS:
                self.alone.append(job)
                return
        self.watch.worker_steps(job.id, job.name, job.steps, job.steps)
        if isinstance(outcome, RunRecord):
            self.watch.begin(job.name, job.steps)
        yield job, outcome


def _killed(code: int) -> Failed:
    """Return the outcome of a run whose worker ended with this exit code."""
    names = {int(each): each.name for each in signal.Signals}
    reason = f"was killed by {names.get(-code, f'signal {-code}')}" if code < 0 else f"ended with exit code {code}"
    fix = "use fewer --jobs or a smaller --batch"
    return Failed(f"its worker process {reason}, possibly for lack of memory: {fix}", "killed")


def _modules(job: Job, device: torch.device) -> list[str]:
    """Return the modules that workers need for a job, and those that this process has imported for it."""
    entries = [entry for _, entry in catalog.unwrap("methods", job.spec.method)]
    entries.append(catalog.lookup("encoders", job.spec.encoder))
    modules = [name for entry in entries if (name := entry.target.partition(":")[0]).startswith("holdfast.")]
    modules += [KERNELS] if device.type == "cuda" else []
    return list(dict.fromkeys([*modules, *(name for name in list(sys.modules) if name.startswith(LOADED))]))


class _Worker:
    """A worker process, the connection to it, and its current job."""

    def __init__(
        self, workspace: bytes, index: int, *, variables: Mapping[str, str], server: ForkServer | None
    ) -> None:
        self.index = index
        self.job: Job | None = None
        self.began, self.limit = 0.0, 0.0  # times at which the job began and at which the worker is killed
        self.fills = False  # whether it computes the inputs of the job, not the job
        self.ending = False  # whether its run was asked to end
        self.connection, other_end = Pipe()
        self.process: ForkedProcess | subprocess.Popen[bytes]
        if server is not None:
            self.process = server.fork(other_end.fileno(), variables)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(other_end.fileno())],
                pass_fds=[other_end.fileno()],
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the driver only, which stops its workers
            )
        other_end.close()
        self.messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.messages.put(workspace)
        self.sender = threading.Thread(target=_send_all, args=(self.connection, self.messages), daemon=True)
        self.sender.start()

    def begin(self, job: Job, *, limit: float, fills: bool = False) -> None:
        """Send a job, or a request for its inputs; the worker is killed if it still runs at the limit."""
        self.job, self.limit, self.ending, self.fills = job, limit, False, fills
        self.began = time.monotonic()
        self.messages.put(
            pickle.dumps(Fill(job) if fills else job)
        )  # `send` would share memory of tensors, which works with children only

    def end_run(self) -> None:
        """Let the worker save and end its run, because the time is up; it is killed if that takes too long."""
        if not self.ending:
            self.ending, self.limit = True, min(self.limit, time.monotonic() + GRACE)
            self.messages.put(pickle.dumps(TIME))

    def stop(self) -> None:
        """Let the worker save its run and end."""
        self.messages.put(pickle.dumps(None))

    def ended(self, seconds: float) -> bool:
        """Wait for the end of the process, whose last messages are dropped."""
        until = time.monotonic() + seconds
        with suppress(EOFError, OSError):
            while self.connection.poll(max(0.0, until - time.monotonic())):
                self.connection.recv()
            return False
        return True

    def end(self) -> int:
        """Kill the process if it still runs; return its exit code."""
        self.messages.put(None)
        if isinstance(self.process, ForkedProcess):
            code = self.process.end()
        else:
            self.process.kill()
            code = self.process.wait()
        with suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)  # a worker that has not started yet does not read what is sent
        self.sender.join()
        self.connection.close()
        return code


def _send_all(connection: Connection, messages: queue.SimpleQueue[bytes | None]) -> None:
    """Send messages without making the engine wait until the worker has started."""
    with suppress(OSError):  # the worker died, which the next `recv` notices
        while (message := messages.get()) is not None:
            connection.send_bytes(message)


def _stop_workers(workers: list[_Worker]) -> None:
    """Let workers with a job save it, then end all processes."""
    try:
        for worker in workers:
            worker.stop()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in workers:
            if worker.job is not None:
                worker.ended(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.end()
