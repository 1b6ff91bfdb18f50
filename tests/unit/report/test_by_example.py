"""Tests example by example, for runs of too few seeds."""

from dataclasses import replace

import pytest

from holdfast.record import packed
from holdfast.report.significance import by_example, by_example_note, correctness, shared_correctness
from holdfast.report.statistics import mcnemar
from tests.unit.report.fake_records import record


def made(method, right, *, seed=0, **other):
    plain = record(method, seed, {"films": sum(right) / len(right)}, **other)
    return replace(plain, stages=[{**plain.stages[0], "right": {"films": packed(right)}}])


BASE = [True] * 20 + [False] * 20
BETTER = [True] * 32 + [False] * 8


def test_the_examples_are_those_of_the_records():
    found = correctness([made("erm", BASE), record("coral", 0, {"films": 0.5})])
    assert list(found.values()) == [BASE]
    assert shared_correctness(found, correctness([made("coral", BETTER)])) == (BASE, BETTER)
    assert shared_correctness(found, correctness([made("coral", BETTER, seed=1)])) == ([], [])
    assert shared_correctness(found, correctness([made("coral", BETTER[:-1])])) == ([], [])


def test_one_seed_is_tested_by_examples_and_corrected():
    records = [made("erm", BASE), made("coral", BETTER), made("mmd", BASE)]
    coral, mmd = by_example(records)
    assert (coral.label, coral.rival, coral.test) == ("coral", "erm", mcnemar(BETTER, BASE))
    assert coral.p == pytest.approx(2 * coral.test.p)
    assert mmd.p == 1.0
    assert "coral is right 12 times where erm is not and wrong 0 times" in by_example_note([coral, mmd])
    assert "no method differs" in by_example_note([mmd])


def test_where_there_are_seeds_enough_or_nothing_to_compare_there_is_none():
    many = [made(method, right, seed=s) for s in range(3) for method, right in (("erm", BASE), ("coral", BETTER))]
    assert by_example(many) == []
    assert by_example([made("coral", BETTER)]) == []
    assert by_example([record("erm", 0, {"films": 0.5}), record("coral", 0, {"films": 0.6})]) == []
    assert by_example_note([]) is None
