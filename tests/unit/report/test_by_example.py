"""Tests example by example, for runs of too few seeds."""

from dataclasses import replace

import pytest

from holdfast.record import packed
from holdfast.report.decision import by_example, joined, judged, note
from holdfast.report.statistics import mcnemar
from tests.unit.report.made import record


def made(method, right, *, seed=0, **other):
    plain = record(method, seed, {"films": sum(right) / len(right)}, **other)
    return replace(plain, stages=[{**plain.stages[0], "right": {"films": packed(right)}}])


BASE = [True] * 20 + [False] * 20
BETTER = [True] * 32 + [False] * 8


def test_the_examples_are_those_of_the_records():
    found = judged([made("erm", BASE), record("coral", 0, {"films": 0.5})])
    assert list(found.values()) == [BASE]
    assert joined(found, judged([made("coral", BETTER)])) == (BASE, BETTER)
    assert joined(found, judged([made("coral", BETTER, seed=1)])) == ([], [])
    assert joined(found, judged([made("coral", BETTER[:-1])])) == ([], [])


def test_one_seed_is_tested_by_examples_and_corrected():
    records = [made("erm", BASE), made("coral", BETTER), made("mmd", BASE)]
    coral, mmd = by_example(records)
    assert (coral.label, coral.rival, coral.test) == ("coral", "erm", mcnemar(BETTER, BASE))
    assert coral.p == pytest.approx(2 * coral.test.p)
    assert mmd.p == 1.0
    assert "coral is right 12 times where erm is not and wrong 0 times" in note([coral, mmd])
    assert "no method differs" in note([mmd])


def test_where_there_are_seeds_enough_or_nothing_to_compare_there_is_none():
    many = [made(method, right, seed=s) for s in range(3) for method, right in (("erm", BASE), ("coral", BETTER))]
    assert by_example(many) == []
    assert by_example([made("coral", BETTER)]) == []
    assert by_example([record("erm", 0, {"films": 0.5}), record("coral", 0, {"films": 0.6})]) == []
    assert note([]) is None
