import math
from dataclasses import replace

import pytest

from holdfast.record import packed
from holdfast.report.words import baseline_note, by_example_note
from holdfast.stats.decision import by_example, correctness, paired, shared_correctness
from holdfast.stats.formatting import format_p
from holdfast.stats.labels import grouped
from holdfast.stats.statistics import mcnemar
from holdfast.stats.summary import summarise
from tests.unit.report.fake_records import leave_one_out, record
from tests.unit.report.test_page import written


def grid(method, table, **other):
    """Return records of {target: scores by seed}."""
    return [record(method, s, {t: v}, **other) for t, values in table.items() for s, v in enumerate(values)]


ERM = grid("erm", {"films": [0.50, 0.60, 0.70], "books": [0.40, 0.50, 0.60]})
MIL = grid("mil", {"films": [0.60, 0.71, 0.79], "books": [0.51, 0.60, 0.69]})  # better by .10 .11 .09 .11 .10 .09
HMA = grid("hma", {"films": [0.51, 0.58, 0.70], "books": [0.40, 0.51, 0.59]})  # by .01 -.02 .00 .00 .01 -.01


def test_pairs_share_seed_and_target():
    tests = paired(reversed(MIL), ERM, "accuracy")
    assert tests.n == 6
    assert tests.difference == pytest.approx(0.10)
    assert tests.stdev == pytest.approx((4 * 0.01**2 / 5) ** 0.5)


def test_pairs_over_seeds_are_means_over_targets():
    tests = paired(MIL, ERM, "accuracy", over="seeds")
    assert tests.n == 3
    assert tests.stdev == pytest.approx(math.sqrt(1.5e-4 / 2))  # of .105, .105, .09, whose mean is .1


def test_incomplete_seeds_are_left_out():
    assert paired(MIL[:-1], ERM, "accuracy", over="seeds").n == 2  # pyright: ignore[reportOptionalMemberAccess]
    assert paired(MIL[:-1], ERM, "accuracy").n == 5  # pyright: ignore[reportOptionalMemberAccess]
    assert paired([record("mil", 9, {"films": 0.5})], ERM, "accuracy") is None


def test_every_method_is_tested_against_erm_with_holm():
    tests = {entry.label: entry for entry in summarise([*ERM, *MIL, *HMA], "accuracy").tests}
    assert set(tests) == {"mil", "hma"}
    assert tests["mil"].rival == "erm"
    assert tests["mil"].p == pytest.approx(2 * tests["mil"].pairs.p)  # the smaller of two
    assert tests["hma"].p == tests["hma"].pairs.p
    note = baseline_note(list(tests.values()), "accuracy")
    assert note is not None
    assert all(text in note for text in ("erm", "6 seed-target pairs", "mil +10.0 (p < 0.001)", "1 other method"))


def test_no_test_without_three_seeds_or_without_a_baseline():
    assert summarise(leave_one_out(), "accuracy").tests == []
    assert summarise([*MIL, *HMA], "accuracy").tests == []
    assert baseline_note([], "accuracy") is None
    assert "no method differs significantly from erm" in str(
        baseline_note(summarise([*ERM, *HMA], "accuracy").tests, "accuracy")
    )


def test_baselines_share_data_and_settings():
    other = grid("erm", {"films": [0.1, 0.2, 0.3]}, data="other", fingerprint="f1")
    assert {e.rival for e in summarise([*ERM, *MIL, *other], "accuracy").tests} == {"erm (reviews)"}
    wide = [
        *grid("erm", {"films": [0.1, 0.2, 0.3]}, encoder="mlp"),
        *grid("mil", {"films": [0.2, 0.3, 0.5]}, encoder="mlp"),
    ]
    tests = {entry.label: entry.rival for entry in summarise([*ERM, *MIL, *wide], "accuracy").tests}
    assert tests == {"mil (minilm)": "erm (minilm)", "mil (mlp)": "erm (mlp)"}
    unlike = grid("mil", {"films": [0.2, 0.3, 0.5]}, encoder="cnn")
    assert summarise([*ERM, *wide[:3], *unlike], "accuracy").tests == []


def test_report_has_the_tests(tmp_path):
    text = written(tmp_path, [*ERM, *MIL, *HMA])
    assert "Comparison with the baseline" in text
    assert "+10.0 ± 0.4" in text
    assert "for 2 comparisons" in text
    assert "Comparison with the baseline" not in written(tmp_path, leave_one_out())


def test_format_p():
    assert (format_p(None), format_p(0.0001), format_p(0.0123)) == ("–", "< 0.001", "0.012")


def with_examples(method, right, *, seed=0):
    run = record(method, seed, {"films": sum(right) / len(right)})
    return replace(run, stages=[{**run.stages[0], "right": {"films": packed(right)}}])


BASE = [True] * 20 + [False] * 20
BETTER = [True] * 32 + [False] * 8


def test_correctness_is_read_from_records():
    base = correctness([with_examples("erm", BASE), record("coral", 0, {"films": 0.5})])
    assert list(base.values()) == [BASE]
    assert shared_correctness(base, correctness([with_examples("coral", BETTER)])) == (BASE, BETTER)
    assert shared_correctness(base, correctness([with_examples("coral", BETTER, seed=1)])) == ([], [])
    assert shared_correctness(base, correctness([with_examples("coral", BETTER[:-1])])) == ([], [])


def test_single_seeds_are_tested_per_example_with_holm():
    records = [with_examples("erm", BASE), with_examples("coral", BETTER), with_examples("mmd", BASE)]
    coral, mmd = summarise(records, "accuracy").by_example
    assert (coral.label, coral.rival, coral.test) == ("coral", "erm", mcnemar(BETTER, BASE))
    assert coral.p == pytest.approx(2 * coral.test.p)
    assert mmd.p == 1.0
    note = by_example_note([coral, mmd])
    assert note is not None
    assert "coral is correct on 12 examples that erm gets wrong, and wrong on 0" in note
    assert "no method differs" in str(by_example_note([mmd]))


def test_no_tests_per_example_with_three_seeds_or_without_a_baseline():
    pairs = (("erm", BASE), ("coral", BETTER))
    assert (
        by_example(grouped([with_examples(method, right, seed=s) for s in range(3) for method, right in pairs])) == []
    )
    assert by_example(grouped([with_examples("coral", BETTER)])) == []
    assert by_example(grouped([record("erm", 0, {"films": 0.5}), record("coral", 0, {"films": 0.6})])) == []
    assert by_example_note([]) is None
