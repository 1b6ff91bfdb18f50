"""Processes that are killed at random moments and resumed end with bit-identical weights, for every method."""

import multiprocessing
import os
import random
import signal
import time

import pytest
import torch

from holdfast import catalog
from holdfast.train.resume import Saver
from holdfast.train.run import train
from holdfast.train.workspace import Workspace
from tests.property.test_resume import METHODS, STEPS, data_for, ending, spec_for

STREAMED = [m for m in METHODS if max(e.load().min_domains for _, e in catalog.unwrap("methods", m)) == 1]
RUNS = [(m, "leave-one-out") for m in METHODS] + [(m, "stream") for m in STREAMED]
KILLS = 50


def run_slowly(method, plan, path, steps):
    """Train as `ending` does, and count the steps."""
    torch.set_num_threads(1)
    spec, workspace = spec_for(method, plan), Workspace(data_for(method))

    def tick(metrics):
        steps.value += 1
        time.sleep(0.02)

    train(spec, workspace.episodes(spec)[0], workspace, saver=Saver(path, seconds=0.0), tick=tick)


def kill_at(step, method, plan, path):
    """Start or resume a run and kill it some steps later; return whether it was still running."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.property.test_killed"])
    steps = context.Value("i", 0)
    process = context.Process(target=run_slowly, args=(method, plan, path, steps))
    process.start()
    while steps.value < step and process.is_alive():
        time.sleep(0.002)
    time.sleep(random.random() * 0.03)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(("method", "plan"), RUNS)
def test_resume_after_sigkill_is_exact(tmp_path, method, plan):
    kills = -(-KILLS // len(RUNS))
    complete, weights = ending(spec_for(method, plan), tmp_path / "straight")
    (tmp_path / "resumed").mkdir()
    path = tmp_path / "resumed" / "run.safetensors"
    for _ in range(kills):
        assert kill_at(random.randint(3, STEPS // 2), method, plan, path)
        assert path.exists() or path.with_name(f"{path.name}.previous").exists()
    again, resumed = ending(spec_for(method, plan), tmp_path / "resumed")
    assert again.stages == complete.stages
    assert list(resumed) == list(weights)
    for name, value in weights.items():
        assert torch.equal(value, resumed[name]), name
