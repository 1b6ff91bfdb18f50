"""What an engine costs beside the runs themselves: 200 tiny runs by Ray, by processes, one after another, and bare.

A tiny run is 150 steps of a small network on vectors, a quarter of a second; both engines that run several at once get
two at once.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from holdfast.bench.harness import Result, attempt, one_thread
from holdfast.data.synthetic import world
from holdfast.run.assemble import Workspace
from holdfast.run.jobs import Engine
from holdfast.run.local import Local
from holdfast.run.many import run_all
from holdfast.run.ray import Ray
from holdfast.run.settings import make_spec
from holdfast.run.train import episodes, train
from holdfast.spec import Spec

RUNS, AT_ONCE, EACH, ROUNDS = 200, 2, 4, 3  # a spec has as many episodes as there are domains: EACH
STEPS, FEWER = 150, 60


def run(device: torch.device) -> list[Result]:
    """Ray's time over the processes' time, both from nothing to the last record; and milliseconds a run of overhead."""
    with one_thread():
        return [
            attempt(f"ray/local, {RUNS} runs, {AT_ONCE} at once", lambda: _ray_over_local(device), bar=1.3),
            attempt(f"the same, {FEWER} steps a run", lambda: _ray_over_local(device, FEWER, rounds=1), bar=None),
            Result("overhead of the local engine, ms a run", _overhead(device), bar=60.0),
        ]


def tiny(count: int, device: torch.device, steps: int = STEPS) -> tuple[list[Spec], Workspace]:
    """Specs of so many runs in all, which differ by their seeds, and where they run."""
    workspace = Workspace(world("vector", "rotation", domains=EACH, size=60), device=device, cache=None)
    small = {"encoder.hidden": [32], "every": steps // 3}
    spec = make_spec(workspace.dataset, steps=steps, batch=16, device=device, settings=small)
    return [replace(spec, seed=seed) for seed in range(count // EACH)], workspace


def seconds(engine: Engine, count: int, device: torch.device, steps: int = STEPS) -> float:
    """How long an engine takes for so many runs, its start and end included."""
    specs, workspace = tiny(count, device, steps)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = run_all(specs, workspace, Path(folder), engine=engine)
        assert len(done) == count
        return time.perf_counter() - start


def _ray_over_local(device: torch.device, steps: int = STEPS, *, rounds: int = ROUNDS) -> float:
    found = []
    for _ in range(rounds):
        local = seconds(Local(AT_ONCE), RUNS, device, steps)
        found.append(seconds(Ray(), RUNS, device, steps) / local)
    return median(found)


def _overhead(device: torch.device) -> float:
    """Milliseconds a run that the engine adds to bare training: records, checks and episodes, one spec at a time."""
    specs, workspace = tiny(RUNS, device)
    train(specs[0], next(episodes(specs[0], workspace)), workspace)  # warm
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for spec in specs:
            start = time.perf_counter()
            for episode in episodes(spec, workspace):
                train(spec, episode, workspace)
            between = time.perf_counter()
            run_all([spec], workspace, Path(folder))
            found.append(1000 * (time.perf_counter() - between - (between - start)) / EACH)
    return median(found)
