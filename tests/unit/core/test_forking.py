"""The process that forks workers: requests and answers, workers that die, a process that is gone or shared."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from holdfast.core import forking
from holdfast.core.forking import ForkServer, end_server, import_early, shared_server, start_early

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
WORKER = "tests.unit.core.forked"


@pytest.fixture(scope="module")
def server():
    each = ForkServer(WORKER)
    each.load(["holdfast.methods.erm", "holdfast.no_such_module"])
    yield each
    each.close()


def fork(server, **variables):
    """Fork a worker; return it and the connection to it."""
    own, other = Pipe()
    worker = server.fork(other.fileno(), {**forking.environment(1), **variables})
    other.close()
    return worker, own


def closed(connection, seconds=30.0):
    """Whether a worker closes its end in this time."""
    try:
        while connection.poll(seconds):
            connection.recv_bytes()
    except EOFError:
        return True
    return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_worker_is_forked_and_ends_with_its_connection(server):
    worker, connection = fork(server)
    connection.send(("pid",))
    pid = connection.recv()
    assert parent_of(pid) == server.process.pid
    assert os.getsid(pid) != os.getsid(0)  # Ctrl-C does not reach it
    connection.send(("end",))
    assert closed(connection)
    assert worker.end() in (0, -9)


def test_a_killed_worker_has_the_code_of_its_signal(server):
    worker, connection = fork(server)
    assert worker.end() == -9
    assert closed(connection)
    failing, connection = fork(server)
    connection.send(("fail",))
    assert closed(connection)
    assert failing.end() == 1


def test_without_the_process_a_connection_is_closed():
    gone = ForkServer(WORKER)
    gone.process.kill()
    gone.process.wait()
    assert not gone.usable()
    worker, connection = fork(gone)
    assert closed(connection)
    assert worker.end() == -9
    gone.close()


def test_a_busy_process_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(forking, "ANSWER_SECONDS", 0.1)
    os.kill(server.process.pid, signal.SIGSTOP)
    worker, connection = fork(server)
    assert worker.end() == -9
    os.kill(server.process.pid, signal.SIGCONT)
    assert closed(connection)
    monkeypatch.setattr(forking, "ANSWER_SECONDS", 30)
    other, _ = fork(server)
    assert other.end() == -9


def test_workers_end_with_the_process_that_forked_them():
    own = ForkServer(WORKER)
    _, connection = fork(own)
    connection.send(("pid",))
    connection.recv()
    own.close()
    assert closed(connection)


def test_a_fork_after_cuda_starts_a_new_interpreter(monkeypatch):
    import torch

    started = []

    def execute(program, words):
        started.append(words)
        raise SystemExit

    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(forking.os, "execv", execute)
    own, other = Pipe()
    with pytest.raises(SystemExit):
        forking._run(WORKER, other.fileno())
    assert started == [[sys.executable, "-m", WORKER, str(other.fileno())]]
    assert os.get_inheritable(other.fileno())
    own.close()
    other.close()


def test_a_worker_has_the_state_of_the_driver_at_the_fork(server, tmp_path, monkeypatch, capfd):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_TEST_NEW", "1")
    monkeypatch.delenv("PATH")
    worker, connection = fork(server, CUDA_VISIBLE_DEVICES="7")
    connection.send(("report", "holdfast.methods.erm", "holdfast.nn.backbones.gmap"))
    report = connection.recv()
    worker.end()
    assert report["folder"] == str(tmp_path)
    assert str(tmp_path) in report["path"]
    assert report["loaded"] == ["holdfast.methods.erm"]
    assert report["variables"]["CUDA_VISIBLE_DEVICES"] == "7"
    assert report["variables"]["HOLDFAST_TEST_NEW"] == "1"
    assert report["variables"]["OMP_NUM_THREADS"] == "1"
    assert "PATH" not in report["variables"]
    assert "printed by a worker" in capfd.readouterr().out


@pytest.fixture
def started(monkeypatch):
    """Processes that are started, none of which exists before."""
    each: list[ForkServer] = []

    class Started(ForkServer):
        def __init__(self, worker: str) -> None:
            super().__init__(worker)
            each.append(self)

    monkeypatch.setattr(forking, "_running", None)
    monkeypatch.setattr(forking, "ForkServer", Started)
    yield each
    for process in each:
        process.close()


def test_all_runs_share_a_process_until_it_ends(started):
    first = shared_server(WORKER)
    assert shared_server(WORKER) is first
    first.process.kill()
    first.process.wait()
    assert shared_server(WORKER) is not first
    assert shared_server("holdfast.core.errors") is not started[1]
    assert started[1].process.poll() is not None
    end_server()
    assert started[2].process.poll() is not None
    end_server()  # nothing runs


def test_the_answer_to_an_interrupted_request_is_skipped(server, monkeypatch):
    def interrupt(text):
        raise KeyboardInterrupt

    first, _ = fork(server)
    second, connection = fork(server)
    with monkeypatch.context() as patched:
        patched.setattr(forking.json, "loads", interrupt)
        with pytest.raises(KeyboardInterrupt):
            first.end()
    server.socket.send(json.dumps({"end": first.number}).encode())  # its answer waits
    connection.send(("fail",))
    assert closed(connection)
    assert second.end() == 1


EARLY = """
import importlib, sys

def start(jobs):
    print(jobs, "torch" in sys.modules)
    raise SystemExit

importlib.import_module(sys.argv.pop(1)).start_early = start
from holdfast.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [("holdfast.cli.compare", "compare"), ("holdfast.cli.compare", "sweep"), ("lab.recipes.command", "reproduce")],
)
def test_commands_start_the_process_before_they_import_torch(module, command):
    words = [sys.executable, "-c", EARLY, module, command, "data", "--jobs", "3"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "3 False\n"


def test_a_command_starts_the_process_for_several_jobs_only(started, monkeypatch):
    monkeypatch.setattr(forking, "cores", lambda: 1)
    for jobs in (None, "auto", "1", "0", "-3", "many"):
        start_early(jobs)
    import_early("holdfast.methods.erm")  # nothing runs
    assert not started
    monkeypatch.setattr(forking, "cores", lambda: 8)
    start_early("2")
    start_early(None)
    assert len(started) == 1
    requests = []
    monkeypatch.setattr(started[0], "load", requests.append)
    import_early("holdfast.methods.erm")
    assert requests == [("holdfast.methods.erm",)]


def test_the_process_ends_without_workers_and_requests(monkeypatch):
    monkeypatch.setattr(forking, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(forking, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(forking.signal, "signal", lambda *_: None)
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=forking.main, args=(other.detach(), "holdfast.core.errors", os.getppid()))
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    own.close()
