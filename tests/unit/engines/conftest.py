"""A small workspace, its specs, and a function that runs them with an engine."""

from collections import deque
from dataclasses import replace

import pytest

from holdfast.data.synthetic import world
from holdfast.train.progress import ProgressListener
from holdfast.train.run import Job
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace


@pytest.fixture(scope="session")
def workspace():
    return Workspace(world("vector", "rotation", domains=3, size=24), cache=None)


@pytest.fixture(scope="session")
def spec(workspace):
    return make_spec(workspace.dataset, steps=12, batch=4, settings={"encoder.hidden": [4], "every": 4})


@pytest.fixture(scope="session")
def jobs_of(workspace):
    return lambda *specs: [Job.of(spec, episode) for spec in specs for episode in workspace.episodes(spec)]


def iterated(jobs):
    """Return the function with which an engine asks for jobs."""
    waiting = deque(jobs)
    return lambda: waiting.popleft() if waiting else None


@pytest.fixture(scope="session")
def run_jobs(workspace):
    """Return a function that runs jobs in a folder and returns the outcomes by id."""

    def run(engine, jobs, out, *, watch=None, deadline=None, **changes):
        own = replace(workspace, out=out, **changes)
        if deadline is not None:
            own.deadline = deadline
        outcomes = list(engine.run(iterated(jobs), own, watch=watch or ProgressListener()))
        assert sorted(job.id for job, _ in outcomes) == sorted(job.id for job in jobs)
        return {job.id: outcome for job, outcome in outcomes}

    return run
