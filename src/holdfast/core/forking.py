"""A process that has imported what workers need and forks them, so that a worker starts in milliseconds, not seconds.

The forkserver of `multiprocessing` is not used: it imports the driver's `__main__` in every child, fixes its imports at
its start, and lives as long as a child does, so that nothing would end a worker whose driver was killed. This process
imports modules on request while the driver goes on. When the driver is gone, it gives its workers some seconds to save
and ends; the kernel kills those that are left, even inside a call that does not return to Python.

Only Linux forks safely after these imports: elsewhere every worker is a new interpreter. A worker that finds CUDA
initialised before the fork starts a new interpreter, too.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_MESSAGE = 1 << 20
POLL_SECONDS = 0.5  # interval at which the process notices that the driver is gone, and that workers ended
IDLE_SECONDS = 600.0  # after which the process ends if it has no workers
ANSWER_SECONDS = 2.0  # that the driver waits for the end of a worker
ORPHAN_SECONDS = 3.0  # that workers without a driver have to save their runs
OUTPUTS = (1, 2)  # descriptors of standard output and standard error
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# threads that wait for others give their core away; next to other processes, spinning takes up to half of the time
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
PR_SET_PDEATHSIG = 1
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def cores() -> int:
    """Return the number of cores that this process may use: by its affinity, and by the quota of a container."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # there is no quota, which reads "max"
        quota, period = map(float, CPU_LIMIT.read_text().split())
        count = min(count, max(1, math.ceil(quota / period)))
    return count


def environment(threads: int) -> dict[str, str]:
    """Return the environment of workers: the modules of this process, and their share of the threads."""
    path = os.pathsep.join(dict.fromkeys(folder for folder in sys.path if folder))
    return {**WAITING, **os.environ, **dict.fromkeys(THREADS, str(threads)), "PYTHONPATH": path}


class ForkServer:
    """The driver's side: starts the process, which imports modules, and lets it fork workers.

    A worker is a module with a function `main`, which is called with a descriptor.
    """

    def __init__(self, worker: str) -> None:
        self.worker, self.driver, self.lock, self.count = worker, os.getpid(), threading.Lock(), 0
        self.socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.core.forking", str(other_end.fileno()), worker, str(os.getpid())],
                pass_fds=[other_end.fileno()],
                env=environment(1),  # of libraries that are loaded before the fork; no threads exist then
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the driver only
            )

    def usable(self) -> bool:
        """Whether the process runs and belongs to this one, not to the process that this one was forked from."""
        return self.driver == os.getpid() and self.process.poll() is None

    def load(self, modules: Iterable[str]) -> None:
        """Let the process import modules; those that it cannot import are left out."""
        self._send({"import": list(modules)})

    def fork(self, descriptor: int, variables: Mapping[str, str]) -> ForkedProcess:
        """Fork a worker with this end of a connection and this environment, and the folder and outputs of this process.

        It does not wait until the process has forked. If that is gone, the other end of the connection is closed.
        """
        folder = os.open(os.curdir, os.O_RDONLY)
        self.count += 1
        request = {"fork": self.count, "variables": dict(variables), "path": sys.path}
        self._send(request, [descriptor, folder, *OUTPUTS])
        os.close(folder)
        return ForkedProcess(self, self.count)

    def end(self, number: int) -> int:
        """Kill a worker if it still runs; return its exit code.

        A process that is busy with imports kills the worker after them, and this function does not wait for it.
        """
        with suppress(OSError), self.lock:
            self.socket.send(json.dumps({"end": number}).encode())
            until = time.monotonic() + ANSWER_SECONDS
            while select.select([self.socket], [], [], max(0.0, until - time.monotonic()))[0]:
                answer = self.socket.recv(MAX_MESSAGE)
                ended, code = json.loads(answer) if answer else (number, -signal.SIGKILL)
                if ended == number:  # not the answer to an earlier request
                    return code
        return -signal.SIGKILL

    def _send(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        with suppress(OSError), self.lock:
            socket.send_fds(self.socket, [json.dumps(request).encode()], list(descriptors))

    def close(self) -> None:
        """End the process and its workers."""
        self.socket.close()
        if self.driver == os.getpid():  # not in a copy of the driver
            self.process.kill()
            self.process.wait()


class ForkedProcess:
    """A forked worker."""

    def __init__(self, server: ForkServer, number: int) -> None:
        self.server, self.number = server, number

    def end(self) -> int:
        """Kill the process if it still runs; return its exit code."""
        return self.server.end(self.number)


_running: ForkServer | None = None


@atexit.register
def end_server() -> None:
    """End the process if it runs; the next runs start another one."""
    global _running
    if _running is not None:
        _running.close()
        _running = None


def shared_server(worker: str) -> ForkServer | None:
    """Return the process for workers of this module, which is started if necessary; None where none are forked.

    It ends with this process, or after some minutes without workers.
    """
    global _running
    if sys.platform != "linux":
        return None
    if _running is None or not _running.usable() or _running.worker != worker:
        end_server()
        _running = ForkServer(worker)
    return _running


def start_early(jobs: str | None) -> None:
    """Start the process for the workers of `--jobs`, if there may be several: it imports torch while this one does."""
    count = cores() if jobs in (None, "auto") else int(jobs) if jobs.isdecimal() else 1
    if count > 1:
        shared_server("holdfast.engines.worker")


def import_early(*modules: str) -> None:
    """Let the process import modules, if it runs, while this one does the same."""
    if _running is not None and _running.driver == os.getpid():
        _running.load(modules)


def import_aside(*modules: str) -> threading.Thread:
    """Import modules in a thread while this process waits for its workers; join it before they are used."""
    thread = threading.Thread(target=_import, args=(modules,), daemon=True)
    thread.start()
    return thread


def main(descriptor: int, worker: str, driver: int) -> None:
    """Import the module of the workers, then answer requests until the driver is gone."""
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # no thread runs here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import([worker])
    children = _Children()
    last = time.monotonic()
    with socket.socket(fileno=descriptor) as requests:
        while os.getppid() == driver and (children or time.monotonic() - last < IDLE_SECONDS):
            if not select.select([requests], [], [], POLL_SECONDS)[0]:
                children.reap()
                continue
            last = time.monotonic()
            message, descriptors, _, _ = socket.recv_fds(requests, MAX_MESSAGE, 2 + len(OUTPUTS))
            if not message:
                break
            request = json.loads(message)
            if "fork" in request:
                children.running[request["fork"]] = _fork(requests, worker, descriptors, request)
            elif "end" in request:
                with suppress(OSError):
                    requests.send(json.dumps([request["end"], children.end(request["end"])]).encode())
            else:
                _import(request["import"])
    ends = time.monotonic() + ORPHAN_SECONDS
    while children and time.monotonic() < ends:
        time.sleep(POLL_SECONDS / 10)
        children.reap()


class _Children:
    """The forked workers by number, and the exit codes of those that ended."""

    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.codes: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.running)

    def reap(self) -> None:
        """Collect the exit codes of processes that ended."""
        for number, pid in list(self.running.items()):
            self._wait(number, pid, os.WNOHANG)

    def end(self, number: int) -> int:
        """Kill a process if it runs; return its exit code."""
        if number in self.running:
            with suppress(ProcessLookupError):
                os.kill(self.running[number], signal.SIGKILL)
            self._wait(number, self.running[number], 0)
        return self.codes.pop(number, 1)

    def _wait(self, number: int, pid: int, options: int) -> None:
        ended, status = os.waitpid(pid, options)
        if ended:
            self.codes[number] = os.waitstatus_to_exitcode(status)
            del self.running[number]


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        with suppress(ImportError):  # a run that needs it reports the reason
            importlib.import_module(name)


def _fork(requests: socket.socket, worker: str, descriptors: Sequence[int], state: Mapping[str, Any]) -> int:
    """Fork a worker and return its process id."""
    server = os.getpid()
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    code = 1
    try:
        _end_with_parent(server)
        requests.close()
        connection, folder, *outputs = descriptors
        for own, descriptor in zip(OUTPUTS, outputs, strict=True):
            os.dup2(descriptor, own)
            os.close(descriptor)
        os.fchdir(folder)
        os.close(folder)
        os.environ.clear()
        os.environ.update(state["variables"])
        sys.path[:] = state["path"]
        _run(worker, connection)
        code = 0
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the one that forked it ends, which may have happened already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _run(worker: str, descriptor: int) -> None:
    import torch

    if torch.cuda._is_in_bad_fork():  # CUDA was initialised before the fork
        os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [sys.executable, "-m", worker, str(descriptor)])
    importlib.import_module(worker).main(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
