"""The benchmark of steps and of runs at once, at a tiny size on a CPU."""

from dataclasses import replace

import pytest
import torch

from holdfast.bench import gpu

SIZES = replace(gpu.CPU, steps=2, runs=2, rows=6, run_steps=1)
DEVICE = torch.device("cpu")


@pytest.mark.parametrize("make", [gpu._resnet, gpu._vit])
def test_a_step_takes_time_in_both_modes(make) -> None:
    for mode in ("auto", "off"):
        assert gpu.step_seconds(make(SIZES), 3, SIZES, DEVICE, mode) > 0


@pytest.mark.graph
def test_graphs_in_memory_reach_workers(tmp_path) -> None:
    """Their tensors are sent as data: workers are no child processes of multiprocessing, which share memory."""
    run_seconds = gpu._timer("graph", "size", {"encoder": "gin"}, SIZES, DEVICE, tmp_path)
    assert gpu._gain(run_seconds, SIZES, "auto") > 0


def test_cases_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "step_seconds", lambda *values: 0.01 if values[-1] == "auto" else 0.02)

    def timer(kind: str, *_):
        alone = {"auto": 5.0 if kind == "text" else 3.0, "off": 12.0}
        return lambda jobs, count, mode: alone[mode] if jobs == 1 else 1.0

    monkeypatch.setattr(gpu, "_timer", timer)
    assert [result.ratio for result in gpu.run(DEVICE)] == [10, 0.5, 10, 0.5, 5, 12, 3]
    assert all(result.ok for result in gpu.run(DEVICE))  # without targets on a CPU
