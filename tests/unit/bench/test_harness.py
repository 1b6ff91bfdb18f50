"""How benches tell: bars kept and missed, and a case that fails without the others."""

from __future__ import annotations

import time

import pytest
import torch

from holdfast.bench.harness import Result, attempt, busy, heard


def test_a_case_that_fails_says_why_and_is_not_kept():
    def fail() -> float:
        raise RuntimeError("no compiler\n  on this machine")

    found = attempt("step, compiled", fail, bar=1.2)
    assert not found.ok
    assert found.json() == {
        "case": "step, compiled", "ratio": None, "bar": 1.2, "ok": False,
        "error": "RuntimeError: no compiler on this machine",
    }  # fmt: skip
    assert attempt("step", lambda: 1.1, bar=1.2) == Result("step", 1.1, bar=1.2)


def test_bars():
    assert Result("a", 1.1, bar=None).ok
    assert not Result("a", 1.3, bar=1.2).ok
    assert Result("a", 60.0, bar=50, at_least=True).ok
    assert not Result("a", 1.0, bar=None, error="it failed").ok


def test_each_case_is_told_as_it_is_measured():
    told: list[str] = []
    with heard.bind(lambda result: told.append(result.case)):
        attempt("first", lambda: 1.0, bar=None)
        assert told == ["first"]
        Result("second", 1.0, bar=None)
    Result("third", 1.0, bar=None)
    assert told == ["first", "second"]


@pytest.mark.gpu
def test_the_work_of_a_gpu_is_counted_without_the_asking_for_it():
    device = torch.device("cuda")
    x = torch.randn(2048, 2048, device=device)

    def slowly() -> None:
        time.sleep(0.2)
        x @ x

    once, twice = busy(slowly, device), busy(lambda: (x @ x, x @ x), device)
    assert 0 < once < 0.1
    assert 1.5 < twice / once < 2.5
