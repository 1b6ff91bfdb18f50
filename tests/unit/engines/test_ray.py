"""Progress of long runs on a Ray cluster, with a stand-in for Ray."""

import sys
import time
from types import SimpleNamespace

import pytest

from holdfast.run import ray as engine
from holdfast.run.ray import StepChannel, StepCounts


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
    driver = engine._Driver(ray, None, None, SimpleNamespace(worker_steps=lambda *call: reported.append(call)))
    driver.running = {"reference": SimpleNamespace(id="a", name="run a", steps=9)}
    driver.last_poll = time.monotonic() - engine.PROGRESS_INTERVAL - 1
    driver.last_outcome = time.monotonic() - silent
    driver._poll_steps()
    assert reported == ([("a", "run a", 7, 9)] if is_open else [])
    assert (driver.actor is not None) == is_open
