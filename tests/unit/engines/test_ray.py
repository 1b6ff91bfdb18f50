"""Progress of long runs on a Ray cluster, with a stand-in for Ray."""

import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from holdfast.core.errors import BadInput
from holdfast.core.stopping import Deadline
from holdfast.engines import ray as engine
from holdfast.engines.ray import Ray, StepChannel, StepCounts
from holdfast.train.run import Failed, Stopped
from tests.unit.engines.conftest import iterated


@pytest.fixture
def actors(monkeypatch):
    """The named actors of the stand-in."""
    actors = {}

    def get_actor(name):
        if name not in actors:
            raise ValueError(name)
        return actors[name]

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_actor=get_actor))
    return actors


def as_actor(counts):
    report, take = (SimpleNamespace(remote=method) for method in (counts.report, counts.take))
    return SimpleNamespace(report=report, take=take)


def test_steps_are_reported_once_the_channel_is_open(actors):
    channel, counts = StepChannel("k"), StepCounts()
    channel.report("a", 3)
    actors["holdfast-steps-k"] = as_actor(counts)
    channel.report("a", 5)
    assert (counts.take(), counts.take()) == ({"a": 5}, {})


@pytest.mark.parametrize(("silent", "is_open"), [(engine.LONG_RUN_SECONDS + 1, True), (0.0, False)])
def test_driver_opens_the_channel_for_long_runs_only(monkeypatch, silent, is_open):
    counts, reported = StepCounts(), []
    counts.report("a", 7)
    monkeypatch.setattr(StepChannel, "open", lambda self: as_actor(counts))
    ray = SimpleNamespace(put=lambda workspace: b"k", get=lambda value: value)
    watch = SimpleNamespace(worker_steps=lambda *call: reported.append(call))
    driver = engine._Driver(ray, None, SimpleNamespace(deadline=Deadline()), watch, None, slots=1)
    driver.running = {"reference": SimpleNamespace(id="a", name="run a", steps=9)}
    driver.last_poll = time.monotonic() - engine.PROGRESS_INTERVAL - 1
    driver.last_outcome = time.monotonic() - silent
    driver._poll_steps()
    assert reported == ([("a", "run a", 7, 9)] if is_open else [])
    assert (driver.actor is not None) == is_open


class Errors:
    """The exceptions of Ray."""

    class RayTaskError(Exception): ...

    class WorkerCrashedError(Exception): ...

    class NodeDiedError(Exception): ...

    class OutOfMemoryError(Exception): ...

    class ObjectLostError(Exception): ...


class FakeRay:
    """Completes the newest task in every call of `wait`, with a result or an exception."""

    exceptions = Errors

    def __init__(self, results):
        self.results, self.most, self.cancelled, self.left = results, 0, [], []

    def put(self, workspace):
        return b"k"

    def remote(self, job, workspaces, channel, left):
        self.left.append(left)
        return job.id

    def wait(self, references, *, num_returns, timeout):
        self.most = max(self.most, len(references))
        return (references[-1:], references[:-1]) if self.results else ([], references)

    def get(self, reference):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def cancel(self, reference, *, force):
        self.cancelled.append(reference)
        self.results = self.results or [None]

    def driver(self, watch, deadline=None):
        return engine._Driver(self, self, SimpleNamespace(deadline=deadline or Deadline()), watch, None, slots=2)


@pytest.fixture
def watch():
    return SimpleNamespace(worker_steps=lambda *_: None, begin=lambda *_: None)


def test_failed_tasks_are_outcomes_and_few_tasks_wait(spec, jobs_of, watch, monkeypatch):
    monkeypatch.setattr(engine, "EXTRA", 1)
    jobs = jobs_of(*(replace(spec, seed=seed) for seed in range(3)))
    crashes = [Errors.RayTaskError("x"), Errors.NodeDiedError(), Errors.OutOfMemoryError("y")]
    ray = FakeRay([*crashes, *[Failed("z", "diverged")] * 6])
    outcomes = [outcome for _, outcome in ray.driver(watch).run(iterated(jobs))]
    assert [outcome.kind for outcome in outcomes] == ["error", "killed", "memory"] + ["diverged"] * 6
    assert ray.most == 3
    assert ray.cancelled == []


def test_tasks_that_run_after_the_deadline_are_cancelled(spec, jobs_of, watch, monkeypatch):
    monkeypatch.setattr(engine, "GRACE", 0.0)
    ray = FakeRay([])
    jobs = jobs_of(spec)
    outcomes = list(ray.driver(watch, deadline=Deadline(-1.0)).run(iterated(jobs)))
    assert [outcome for _, outcome in outcomes] == [Stopped()] * 3
    assert ray.cancelled == [job.id for job in jobs]
    assert max(ray.left) < 0


def test_slots_of_a_cluster_follow_from_its_resources():
    cluster = SimpleNamespace(
        cluster_resources=lambda: {"CPU": 8.0, "GPU": 1.0}, nodes=lambda: [{"Alive": True, "Resources": {"CPU": 8.0}}]
    )
    assert Ray(cpus=2.0)._slots(cluster, 0.0) == 4
    assert Ray(cpus=0.5)._slots(cluster, 0.25) == 4
    assert Ray(cpus=0.0)._slots(cluster, 0.0) == engine.MAX_SUBMITTED - engine.EXTRA
    with pytest.raises(BadInput, match="9 CPUs"):
        Ray(cpus=9.0)._check(cluster, 0.0)
