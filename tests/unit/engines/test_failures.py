"""Failures of one run affect no other: errors, divergence, lack of memory, killed processes, and the deadline."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import catalog
from holdfast.core.stopping import Deadline, Interrupted, request_stop, withdraw_request
from holdfast.engines import pool
from holdfast.engines.work import Local, outcome_of
from holdfast.train.run import Failed, Stopped, train_and_save
from tests.unit.engines import faulty

pytestmark = pytest.mark.usefixtures("clean_catalog")
KINDS = {
    faulty.Raises: ("error", r"^KeyError: 'no such thing' \(holdfast/methods/base.py:\d+\)$"),
    faulty.NotANumber: ("diverged", r"diverged: risk is nan at step 1"),
    faulty.NeedsMemory: ("memory", "too little memory for a step"),
    faulty.NeedsMemoryToEnd: ("memory", r"not enough memory \(holdfast/[a-z/]+.py:\d+\)"),
    faulty.Dies: ("killed", "process was killed by SIGKILL"),
}


def stages(outcomes, jobs):
    return [outcomes[job.id].stages for job in jobs]


@pytest.fixture
def expected(workspace, spec, jobs_of, tmp_path):
    """Stages of runs without faults, computed one after another."""
    good = jobs_of(spec, replace(spec, seed=1))
    own = replace(workspace, out=tmp_path / "expected")
    return good, [train_and_save(job.spec, job.episode_in(own), own).stages for job in good]


@pytest.mark.parametrize("at_once", [1, 2])
def test_failed_runs_have_an_outcome_and_the_others_are_the_same(
    at_once, workspace, spec, jobs_of, run_jobs, expected, tmp_path
):
    good, stages_of_good = expected
    methods = [method for method in KINDS if at_once > 1 or method is not faulty.Dies]
    bad = [jobs_of(replace(spec, method=catalog.register_method(method)))[0] for method in methods]
    outcomes = run_jobs(Local(at_once), [*bad, *good], tmp_path / "out")
    for method, job in zip(methods, bad, strict=True):
        outcome, (kind, cause) = outcomes[job.id], KINDS[method]
        assert isinstance(outcome, Failed)
        assert outcome.kind == kind
        assert re.search(cause, outcome.cause), outcome.cause
    assert stages(outcomes, good) == stages_of_good
    raised = bad[methods.index(faulty.Raises)]
    trace = (tmp_path / "out" / "failures" / f"{raised.id}.txt").read_text()
    assert "faulty.py" in trace
    assert "KeyError: 'no such thing'" in trace


SCRIPT = """
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, {folder!r})
from tests.unit.engines import faulty
from holdfast import catalog, world
from holdfast.engines.work import Local
from holdfast.train.run import Job
from holdfast.train.progress import ProgressListener
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace

workspace = Workspace(world("vector", "rotation", domains=3, size=24), cache=None, out=Path({out!r}))
spec = make_spec(workspace.dataset, steps=12, batch=4, settings={{"encoder.hidden": [4], "every": 4}})
specs = [spec, replace(spec, method=catalog.register_method(faulty.Hangs))]
waiting = deque(Job.of(spec, episode) for spec in specs for episode in workspace.episodes(spec))
runs = Local(2).run(lambda: waiting.popleft() if waiting else None, workspace, watch=ProgressListener())
for job, outcome in runs:
    print(type(outcome).__name__, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_a_script_without_a_guard_runs_workers_which_end_with_it(tmp_path):
    """They end even if the script is killed while they are in a call that does not return to Python."""
    script, pid_file = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parents[3]), out=str(tmp_path / "out")))
    variables = {**os.environ, faulty.PID_FILE: str(pid_file)}
    with subprocess.Popen([sys.executable, str(script)], env=variables, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert [driver.stdout.readline() for _ in range(3)] == ["RunRecord\n"] * 3
            wait_for(lambda: pid_file.exists() and pid_file.read_text(), 60)
            worker = int(pid_file.read_text())
            server = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        finally:
            driver.kill()
    assert wait_for(lambda: not is_running(worker) and not is_running(server), 20)


def wait_for(condition, seconds):
    """Wait until a condition holds, for at most this time; return whether it does."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_run_that_the_deadline_stopped_continues_from_its_checkpoint(at_once, run_jobs, expected, tmp_path):
    good, stages_of_good = expected
    stopped = run_jobs(Local(at_once), good, tmp_path, deadline=Deadline(-1.0))
    assert set(stopped.values()) == {Stopped()}
    if at_once == 1:  # the inputs of workers are not prepared before the deadline
        assert {path.name.split(".")[0] for path in (tmp_path / "checkpoints").iterdir()} == {job.id for job in good}
    assert stages(run_jobs(Local(1), good, tmp_path), good) == stages_of_good


def test_a_worker_that_does_not_stop_at_the_deadline_is_killed(spec, jobs_of, run_jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "GRACE", 0.5)
    monkeypatch.setenv(faulty.PID_FILE, str(tmp_path / "pid"))
    jobs = jobs_of(replace(spec, method=catalog.register_method(faulty.Hangs)))
    start = time.monotonic()
    outcomes = run_jobs(Local(2), jobs[:2], tmp_path, deadline=Deadline(3.0))
    assert set(outcomes.values()) == {Stopped()}
    assert time.monotonic() - start < 20


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_a_worker_that_has_not_started_at_the_deadline_is_not_waited_for(
    jobs_of, spec, run_jobs, tmp_path, monkeypatch
):
    monkeypatch.setattr(pool, "GRACE", 0.1)
    server = pool.shared_server(pool.WORKER)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        outcomes = run_jobs(Local(2), jobs_of(spec)[:2], tmp_path, deadline=Deadline(0.5))
        assert time.monotonic() - start < 10
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert set(outcomes.values()) == {Stopped()}


def test_a_signal_is_no_outcome(workspace, spec, jobs_of, tmp_path):
    own = replace(workspace, out=tmp_path)
    with pytest.raises(Interrupted):
        outcome_of(jobs_of(spec)[0], own, tick=lambda _: request_stop(signal.SIGTERM))
    withdraw_request()
    assert (tmp_path / "checkpoints").exists()
