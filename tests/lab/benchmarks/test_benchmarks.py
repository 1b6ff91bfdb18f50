"""Results of benchmarks, their machine and command, and small cases of the benchmarks of steps, kernels and tables."""

import json
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast.accel import registry as core
from holdfast.data.readers.tables import read_table
from lab.benchmarks import gpu, kernels, loop, tables
from lab.benchmarks.command import bench
from lab.benchmarks.harness import Result, attempt, busy, on_result


def test_failed_case_reports_its_error():
    def fail() -> float:
        raise RuntimeError("no compiler\n  on this machine")

    result = attempt("step, compiled", fail, bar=1.2)
    assert not result.ok
    assert result.json() == {
        "case": "step, compiled", "ratio": None, "bar": 1.2, "ok": False,
        "error": "RuntimeError: no compiler on this machine",
    }  # fmt: skip
    assert attempt("step", lambda: 1.1, bar=1.2) == Result("step", 1.1, bar=1.2)
    assert [Result("a", *bars).ok for bars in ((1.1, None), (1.3, 1.2), (60.0, 50, True))] == [True, False, True]


def test_callback_sees_each_result_when_it_is_measured():
    cases: list[str] = []
    with on_result.bind(lambda result: cases.append(result.case)):
        attempt("first", lambda: 1.0, bar=None)
        assert cases == ["first"]
        Result("second", 1.0, bar=None)
    Result("third", 1.0, bar=None)
    assert cases == ["first", "second"]


@pytest.mark.gpu
def test_gpu_time_excludes_time_on_the_host():
    device = torch.device("cuda")
    x = torch.randn(2048, 2048, device=device)

    def slowly() -> None:
        time.sleep(0.2)
        x @ x

    once, twice = busy(slowly, device), busy(lambda: (x @ x, x @ x), device)
    assert 0 < once < 0.1
    assert 1.5 < twice / once < 2.5


def test_records_name_the_machine_and_the_command(monkeypatch, capsys):
    monkeypatch.setattr(loop, "run", lambda device: [Result("a/b", 1.0, bar=None)])
    bench("loop", device="cpu", json=True)
    record = json.loads(capsys.readouterr().out)
    assert record["command"] == "holdfast bench loop --json --device cpu"
    assert f"torch {torch.__version__}" in record["hardware"]
    assert record["results"] == [{"case": "a/b", "ratio": 1.0, "bar": None, "ok": True}]


SIZES = replace(gpu.CPU, steps=2, runs=3, rows=6, run_steps=1)
DEVICE = torch.device("cpu")


@pytest.mark.parametrize("make", [gpu._resnet, lambda sizes: gpu.vit(sizes.pixels, sizes.layers)])
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MiniLM with a memory", "word LSTM with a bank", "GIN"])
def test_networks_take_steps(name):
    with ExitStack() as stack:
        kernels.steps(kernels.NETWORKS[name], torch.device("cpu"), stack)()


def test_a_module_that_is_left_out_is_not_used(monkeypatch):
    monkeypatch.setattr(core, "_supported", lambda name, device, dtype: name)
    usable = [core.usable(name, torch.device("cpu"), torch.float32) for name in ("norm", "memory")]
    with core.without_kernels("norm"):
        left = [core.usable(name, torch.device("cpu"), torch.float32) for name in ("norm", "memory")]
    assert (usable, left) == (["norm", "memory"], [None, "memory"])


def test_the_table_has_fifty_columns_of_several_kinds(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BATCH", 150)
    size = tables.write_table(tmp_path / "table.csv", 400)
    dataset = read_table(tmp_path / "table.csv")
    schema = dataset.raw.take(np.arange(1)).schema
    kinds = [column.kind for column in schema]
    expected = {"number": tables.NUMBERS, "category": tables.CATEGORIES, "boolean": tables.BOOLEANS}
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == dict(
        sorted({**expected, "date": tables.DATES}.items())
    )
    assert (len(schema), len(dataset)) == (50, 400)
    assert (len(dataset.domains), len(dataset.classes)) == (tables.DOMAINS, tables.CLASSES)
    assert 8 * 400 * (tables.NUMBERS + tables.DATES) < size < 32 * 400 * 52


@pytest.mark.slow
def test_time_and_memory_are_measured(monkeypatch):
    monkeypatch.setattr(tables, "ROWS", 400)
    results = {result.case: result for result in tables.run(torch.device("cpu"))}
    assert results["read, audit and prepare, CPU s"].bar == tables.SECONDS
    phases = sum(results[f"{phase}, CPU s"].ratio for phase in ("read", "audit", "prepare"))
    assert results["read, audit and prepare, CPU s"].ratio == pytest.approx(phases)
    assert results["peak memory of the process, MB"].ratio > results["table, MB"].ratio > 0
    assert not any(result.error for result in results.values())


def test_a_failed_process_is_an_error(monkeypatch):
    monkeypatch.setattr(tables, "ROWS", 4)
    monkeypatch.setattr(tables, "_CHILD", "import sys; sys.exit('no memory')")
    (result,) = tables.run(torch.device("cpu"))
    assert (result.error, result.ok) == ("no memory", False)
