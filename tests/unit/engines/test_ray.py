"""Runs on a Ray cluster, with a stand-in for Ray."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from holdfast.core.errors import BadInput
from holdfast.core.stopping import Deadline
from holdfast.engines import ray as engine
from holdfast.engines.ray import Ray
from holdfast.train.run import Failed, Stopped
from tests.unit.engines.conftest import iterated


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

    def remote(self, job, workspaces, key, left):
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
