"""Benchmark results: targets, failures and progress callbacks."""

import json
import time

import pytest
import torch

from lab.benchmarks import loop
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


def test_targets():
    assert Result("a", 1.1, bar=None).ok
    assert not Result("a", 1.3, bar=1.2).ok
    assert Result("a", 60.0, bar=50, at_least=True).ok
    assert not Result("a", 1.0, bar=None, error="it failed").ok


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
