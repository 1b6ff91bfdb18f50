"""The benchmark of steps and of runs at once, at a tiny size on a CPU."""

from dataclasses import replace

import pytest
import torch

from lab.benchmarks import gpu

SIZES = replace(gpu.CPU, steps=2, runs=3, rows=6, run_steps=1)
DEVICE = torch.device("cpu")


@pytest.mark.parametrize("make", [gpu._resnet, gpu._vit])
def test_a_step_takes_time_in_both_modes(make) -> None:
    for mode in ("auto", "off"):
        assert gpu.step_seconds(make(SIZES), 3, SIZES, DEVICE, mode) > 0


@pytest.mark.graph
@pytest.mark.slow
def test_graphs_in_memory_reach_workers(tmp_path) -> None:
    """Their tensors are sent as data: workers are no child processes of multiprocessing, which share memory."""
    timed = gpu._timer("graph", "size", {"encoder": "gin"}, SIZES, DEVICE, tmp_path)
    assert gpu._gain(timed, SIZES, "auto") > 0
    assert timed(SIZES.at_once, SIZES.runs, "auto").started > 0


def test_throughput_is_counted_after_the_first_run_of_every_worker() -> None:
    assert gpu.pace(10.0, [20.0, 22.0, 23.0, 24.0], 2) == gpu.Pace(steady=1.0, started=3.5)


def test_cases_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "step_seconds", lambda *values: 0.01 if values[-1] == "auto" else 0.02)

    def timer(kind: str, *_):
        alone = {"auto": 5.0 if kind == "text" else 3.0, "off": 12.0}
        return lambda jobs, count, mode: gpu.Pace(alone[mode], 9.0) if jobs == 1 else gpu.Pace(1.0, 2.0)

    monkeypatch.setattr(gpu, "_timer", timer)
    assert [result.ratio for result in gpu.run(DEVICE)] == [10, 0.5, 10, 0.5, 5, 12, 2.5, 3, 1.5]
    assert all(result.ok for result in gpu.run(DEVICE))  # without targets on a CPU
