"""A process that has imported what workers need and forks them, so that a worker starts in milliseconds, not seconds.

The driver sends one JSON document per request, with the worker's end of a connection where a worker is to be forked,
and receives one answer. Workers of a GPU initialise CUDA after the fork; if an import did so before, the fork starts a
new interpreter instead. Only Linux forks safely after these imports: elsewhere every worker is a new interpreter.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

MAX_MESSAGE = 1 << 20
POLL_SECONDS = 0.02
WORKER = "holdfast.run.worker"


class Template:
    """The driver's side: starts the process, which imports `modules`, and lets it fork workers."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.run.template", str(other_end.fileno()), *modules],
                pass_fds=[other_end.fileno()],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the driver only
            )

    def fork(self, descriptor: int, variables: Mapping[str, str]) -> ForkedProcess | None:
        """Fork a worker with this end of a connection and these variables; None if the process is gone."""
        answer = self.ask({"fork": dict(variables)}, [descriptor])
        return None if answer is None else ForkedProcess(self, int(answer))

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        """Return the answer to a request; None if the process is gone."""
        try:
            socket.send_fds(self.socket, [json.dumps(request).encode()], list(descriptors))
            answer = self.socket.recv(MAX_MESSAGE)
        except OSError:
            return None
        return json.loads(answer) if answer else None

    def close(self) -> None:
        """End the process; its workers notice that the driver is gone by their own connections."""
        self.socket.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        self.process.kill()
        self.process.wait()


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


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Import the modules, then answer requests until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in (WORKER, *modules):
        with suppress(ImportError):  # a run that needs it reports the reason
            importlib.import_module(name)
    with socket.socket(fileno=descriptor) as requests:
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, MAX_MESSAGE, 1)
            if not message:
                return
            request = json.loads(message)
            if "fork" in request:
                answer: Any = _fork(requests, descriptors[0], request["fork"])
            elif "kill" in request:
                with suppress(ProcessLookupError):
                    os.kill(request["kill"], signal.SIGKILL)
                answer = True
            else:
                answer = {"code": _exit_code(request["poll"])}
            with suppress(OSError):
                requests.send(json.dumps(answer).encode())


def _fork(requests: socket.socket, descriptor: int, variables: Mapping[str, str]) -> int:
    """Fork a worker and return its number."""
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    code = 1
    try:
        requests.close()
        os.environ.update(variables)
        _run_worker(descriptor)
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
    main(int(sys.argv[1]), sys.argv[2:])
