"""The process that forks workers: requests and answers, workers that die, a process that is gone or shared."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from holdfast.run import local, template
from holdfast.run.template import ForkedProcess, Template, end_template, import_early, shared_template, start_early
from holdfast.run.workspace import Workspace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@pytest.fixture(scope="module")
def forking():
    each = Template(1)
    each.load(["holdfast.methods.erm", "holdfast.no_such_module"])
    yield each
    each.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_worker_is_forked_and_ends_with_its_connection(forking, tiny_workspace):
    own, other = Pipe()
    worker = forking.fork(other.fileno(), {})
    other.close()
    assert isinstance(worker, ForkedProcess)
    assert parent_of(worker.pid) == forking.process.pid
    assert os.getsid(worker.pid) != os.getsid(0)  # Ctrl-C does not reach it
    assert worker.poll() is None
    own.send(tiny_workspace)
    own.close()
    assert worker.wait(30) == 0
    assert worker.poll() == 0


def test_a_killed_worker_has_the_code_of_its_signal(forking):
    own, other = Pipe()
    worker = forking.fork(other.fileno(), {})
    other.close()
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.05)
    worker.kill()
    assert worker.wait(30) == -9
    worker.kill()  # nothing happens
    with pytest.raises(EOFError):
        own.recv()


def test_without_the_process_a_worker_is_a_new_interpreter(tiny_workspace):
    gone = Template(1)
    gone.process.kill()
    gone.process.wait()
    own, other = Pipe()
    assert gone.fork(other.fileno(), {}) is None
    worker = local._Worker(tiny_workspace, 0, variables={}, template=gone)
    assert isinstance(worker.process, subprocess.Popen)
    worker.close()
    assert ForkedProcess(gone, 1).poll() == -9
    gone.close()
    own.close()
    other.close()


def test_a_fork_after_cuda_starts_a_new_interpreter(monkeypatch):
    import torch

    started = []

    def execute(program, words):
        started.append(words)
        raise SystemExit

    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(template.os, "execv", execute)
    own, other = Pipe()
    with pytest.raises(SystemExit):
        template._run_worker(other.fileno())
    assert started == [[sys.executable, "-m", "holdfast.run.worker", str(other.fileno())]]
    assert os.get_inheritable(other.fileno())
    own.close()
    other.close()


REPORT = """
import json, os, sys

def report(path):
    names = ("holdfast.methods.erm", "holdfast.nn.backbones.gmap")
    with open(path, "w") as file:
        json.dump({"variables": dict(os.environ), "loaded": [name for name in names if name in sys.modules]}, file)
    print("printed by a worker", flush=True)
    raise SystemExit
"""


class Call:
    """Calls a function where it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_worker_has_the_state_of_the_driver_at_the_fork(forking, tmp_path, monkeypatch, capfd):
    (tmp_path / "reporting.py").write_text(REPORT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_TEST_NEW", "1")
    monkeypatch.delenv("PATH")
    own, other = Pipe()
    worker = forking.fork(other.fileno(), {"CUDA_VISIBLE_DEVICES": "7"})
    other.close()
    own.send(Call(importlib.import_module("reporting").report, "report.json"))
    assert worker.wait(30) == 1  # of SystemExit
    own.close()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["loaded"] == ["holdfast.methods.erm"]
    assert report["variables"]["CUDA_VISIBLE_DEVICES"] == "7"
    assert report["variables"]["HOLDFAST_TEST_NEW"] == "1"
    assert report["variables"]["OMP_NUM_THREADS"] == "1"
    assert "PATH" not in report["variables"]
    assert "printed by a worker" in capfd.readouterr().out


@pytest.fixture
def started(monkeypatch):
    """Processes that are started, none of which exists before."""
    each: list[Template] = []

    class Started(Template):
        def __init__(self, threads: int) -> None:
            super().__init__(threads)
            each.append(self)

    monkeypatch.setattr(template, "_running", None)
    monkeypatch.setattr(template, "Template", Started)
    yield each
    for process in each:
        process.close()


def test_all_runs_share_a_process_until_it_ends(started):
    first = shared_template(1)
    assert shared_template(1) is first
    first.process.kill()
    first.process.wait()
    second = shared_template(1)
    assert second is not first
    assert shared_template(2).threads == 2  # threads are set before the imports
    assert second.process.poll() is not None
    assert [each.threads for each in started] == [1, 1, 2]
    end_template()
    assert started[2].process.poll() is not None
    end_template()  # nothing runs


def test_an_interrupted_request_ends_the_process(started, monkeypatch):
    """Its answer may still arrive."""
    interrupted = shared_template(1)

    def interrupt(text):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(template.json, "loads", interrupt)
        with pytest.raises(KeyboardInterrupt):
            interrupted.ask({"kill": 1 << 30})
    assert interrupted.process.wait(20) == -9
    assert shared_template(1) is not interrupted


EARLY = """
import importlib, sys

def start(jobs):
    print(jobs, "torch" in sys.modules)
    raise SystemExit

importlib.import_module(f"holdfast.cli.{sys.argv[1]}").start_early = start
from holdfast.cli import main
main()
"""


@pytest.mark.parametrize("command", ["compare", "sweep", "reproduce"])
def test_commands_start_the_process_before_they_import_torch(command):
    words = [sys.executable, "-c", EARLY, command, "data", "--jobs", "3"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "3 False\n"


def test_a_command_starts_the_process_for_several_jobs_only(started, monkeypatch):
    monkeypatch.setattr(template, "cores", lambda: 8)
    for jobs in (None, "1", "0", "-3", "many"):
        start_early(jobs)
    import_early("holdfast.methods.erm")  # nothing runs
    assert not started
    start_early("2")
    start_early("auto")
    assert [each.threads for each in started] == [4, 1]
    requests = []
    monkeypatch.setattr(started[1], "load", requests.append)
    import_early("holdfast.methods.erm")
    assert requests == [("holdfast.methods.erm",)]


def test_the_process_ends_without_workers_and_requests(monkeypatch):
    monkeypatch.setattr(template, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(template, "_exit_code", lambda pid: None if time.monotonic() < ends else 0)
    monkeypatch.setattr(template, "_fork", lambda *_: 12)
    monkeypatch.setattr(template.signal, "signal", lambda *_: None)
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=template.main, args=(other.detach(),))
    ends = time.monotonic() + 0.6  # of the worker
    thread.start()
    own.send(json.dumps({"fork": {}}).encode())
    assert json.loads(own.recv(100)) == 12
    thread.join(0.3)
    assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive()
    own.close()


@pytest.fixture
def tiny_workspace(tmp_path: Path) -> Workspace:
    from holdfast.data.synthetic import world

    return Workspace(world("vector", "none", domains=3, size=12), out=tmp_path).for_worker(threads=1)
