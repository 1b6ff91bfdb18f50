"""A process that has imported what workers need and forks them, so that a worker starts in milliseconds, not seconds.

The driver sends one JSON document per request, with file descriptors where a worker is to be forked, and receives one
answer; requests to import have none, so that the driver goes on meanwhile. All runs of a driver share the process, and
a command starts it before its own imports. Workers of a GPU initialise CUDA after the fork; if an import did so before,
the fork starts a new interpreter instead. Only Linux forks safely after these imports: elsewhere every worker is a new
interpreter.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

MAX_MESSAGE = 1 << 20
POLL_SECONDS = 0.02
IDLE_SECONDS = 600.0  # after which the process ends if it has no workers
WORKER = "holdfast.run.worker"
OUTPUTS = (1, 2)  # descriptors of standard output and standard error
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def environment(threads: int) -> dict[str, str]:
    """Return the environment of workers: the modules of this process, and their share of the threads."""
    path = os.pathsep.join(dict.fromkeys(folder for folder in sys.path if folder))
    return {**os.environ, **dict.fromkeys(THREADS, str(threads)), "PYTHONPATH": path}


class Template:
    """The driver's side: starts the process, which imports modules, and lets it fork workers."""

    def __init__(self, threads: int) -> None:
        self.threads, self.driver, self.lock = threads, os.getpid(), threading.Lock()
        self.socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.run.template", str(other_end.fileno())],
                pass_fds=[other_end.fileno()],
                env=environment(threads),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the driver only
            )

    def load(self, modules: Iterable[str]) -> None:
        """Let the process import modules; those that it cannot import are left out."""
        with suppress(OSError), self.lock:
            self.socket.send(json.dumps({"import": list(modules)}).encode())

    def fork(self, descriptor: int, variables: Mapping[str, str]) -> ForkedProcess | None:
        """Fork a worker with this end of a connection, and with the environment, folder and outputs of this process.

        The variables are added to its environment. Returns None if the process is gone.
        """
        state = {"variables": {**environment(self.threads), **variables}, "path": sys.path}
        folder = os.open(os.curdir, os.O_RDONLY)
        answer = self.ask({"fork": state}, [descriptor, folder, *OUTPUTS])
        os.close(folder)
        return None if answer is None else ForkedProcess(self, int(answer))

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        """Return the answer to a request; None if the process is gone."""
        try:
            with self.lock:
                socket.send_fds(self.socket, [json.dumps(request).encode()], list(descriptors))
                answer = self.socket.recv(MAX_MESSAGE)
                return json.loads(answer) if answer else None
        except OSError:
            return None
        except BaseException:  # an interruption: the next request would get the answer to this one
            self.process.kill()
            raise

    def close(self) -> None:
        """End the process; its workers notice that the driver is gone by their own connections."""
        if self.driver == os.getpid():  # not in a copy of the driver
            self.socket.close()
            self.process.kill()
            self.process.wait()


_running: Template | None = None


@atexit.register
def end_template() -> None:
    """End the process if it runs; the next runs start another one."""
    global _running
    if _running is not None:
        _running.close()
        _running = None


def shared_template(threads: int) -> Template | None:
    """Return the process for workers with this number of threads, which is started if necessary.

    It ends with this process, or after some minutes without workers. Returns None where workers are not forked.
    """
    global _running
    if sys.platform != "linux":
        return None
    own = _running is not None and _running.driver == os.getpid()
    if _running is None or not own or _running.threads != threads or _running.process.poll() is not None:
        end_template()
        _running = Template(threads)
    return _running


def start_early(jobs: str | None) -> None:
    """Start the process for the workers of `--jobs`, if there are several: it imports torch while this one does."""
    count = cores() if jobs == "auto" else int(jobs) if jobs and jobs.isdecimal() else 1
    if count > 1:
        shared_template(max(1, cores() // count))


def import_early(*modules: str) -> None:
    """Let the process import modules, if it runs, while this one does the same."""
    if _running is not None and _running.driver == os.getpid():
        _running.load(modules)


class ForkedProcess:
    """A forked worker, with the methods of `subprocess.Popen` that the engine uses."""

    def __init__(self, template: Template, pid: int) -> None:
        self.template, self.pid = template, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        if self.returncode is None:
            answer = self.template.ask({"poll": self.pid})
            self.returncode = -signal.SIGKILL if answer is None else answer.get("code")
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and timeout is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(WORKER, timeout)
            time.sleep(POLL_SECONDS)
        return code

    def kill(self) -> None:
        """Kill the process."""
        if self.returncode is None:
            self.template.ask({"kill": self.pid})


def main(descriptor: int) -> None:
    """Import what every worker needs, then answer requests until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import([WORKER])
    workers: set[int] = set()
    with socket.socket(fileno=descriptor) as requests:
        requests.settimeout(IDLE_SECONDS)
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(requests, MAX_MESSAGE, 2 + len(OUTPUTS))
            except TimeoutError:
                if all(_exit_code(pid) is not None for pid in workers):
                    return
                continue
            if not message:
                return
            request = json.loads(message)
            if "import" in request:
                _import(request["import"])
                continue
            if "fork" in request:
                answer: Any = _fork(requests, descriptors, request["fork"])
                workers.add(answer)
            elif "kill" in request:
                with suppress(ProcessLookupError):
                    os.kill(request["kill"], signal.SIGKILL)
                answer = True
            else:
                answer = {"code": _exit_code(request["poll"])}
            with suppress(OSError):
                requests.send(json.dumps(answer).encode())


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        with suppress(ImportError):  # a run that needs it reports the reason
            importlib.import_module(name)
    if "triton" in sys.modules:
        with suppress(ImportError, OSError):  # other versions have it elsewhere
            from triton.runtime.cache import triton_key  # pyright: ignore[reportMissingImports]

            triton_key()  # reads 400 MB, once per process


def _fork(requests: socket.socket, descriptors: Sequence[int], state: Mapping[str, Any]) -> int:
    """Fork a worker and return its number."""
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    code = 1
    try:
        requests.close()
        connection, folder, *outputs = descriptors
        for own, descriptor in zip(OUTPUTS, outputs, strict=True):
            os.dup2(descriptor, own)
        os.fchdir(folder)
        os.environ.clear()
        os.environ.update(state["variables"])
        sys.path[:] = state["path"]
        _run_worker(connection)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_worker(descriptor: int) -> None:
    from multiprocessing.connection import Connection

    import torch

    from holdfast.run import worker

    if torch.cuda._is_in_bad_fork():  # CUDA was initialised before the fork
        os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [sys.executable, "-m", WORKER, str(descriptor)])
    worker.main(Connection(descriptor))


_codes: dict[int, int] = {}  # of processes that ended


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a child; None while it runs."""
    if pid not in _codes:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return None
        _codes[pid] = os.waitstatus_to_exitcode(status)
    return _codes[pid]


if __name__ == "__main__":
    main(int(sys.argv[1]))
