"""The process that forks workers: requests and answers, a worker that dies, and a process that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from holdfast.run import local, template
from holdfast.run.template import ForkedProcess, Template
from holdfast.run.workspace import Workspace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@pytest.fixture(scope="module")
def forking():
    each = Template(["holdfast.methods.erm", "holdfast.no_such_module"], local._environment(1))
    yield each
    each.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_worker_is_forked_and_ends_with_its_connection(forking, tiny_workspace):
    own, other = Pipe()
    worker = forking.fork(other.fileno(), {"HOLDFAST_TEST_VARIABLE": "1"})
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
    gone = Template([], local._environment(1))
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


@pytest.fixture
def tiny_workspace(tmp_path: Path) -> Workspace:
    from holdfast.data.synthetic import world

    return Workspace(world("vector", "none", domains=3, size=12), out=tmp_path).for_worker(threads=1)
