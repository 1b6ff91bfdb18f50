from __future__ import annotations

import math

import pytest

from holdfast.report.significance import against_baseline, baseline_note, format_p, paired
from tests.unit.report.fake_records import leave_one_out, record
from tests.unit.report.test_page import written


def grid(method, table, **other):
    """Records of {target: scores by seed}."""
    return [record(method, s, {t: v}, **other) for t, values in table.items() for s, v in enumerate(values)]


ERM = grid("erm", {"films": [0.50, 0.60, 0.70], "books": [0.40, 0.50, 0.60]})
MIL = grid("mil", {"films": [0.60, 0.71, 0.79], "books": [0.51, 0.60, 0.69]})  # better by .10 .11 .09 .11 .10 .09
HMA = grid("hma", {"films": [0.51, 0.58, 0.70], "books": [0.40, 0.51, 0.59]})  # by .01 -.02 .00 .00 .01 -.01


def test_pairs_are_of_one_seed_and_target():
    found = paired(reversed(MIL), ERM, "accuracy")
    assert found is not None
    assert found.n == 6
    assert found.difference == pytest.approx(0.10)
    assert found.stdev == pytest.approx((4 * 0.01**2 / 5) ** 0.5)


def test_over_seeds_each_pair_is_a_mean_over_targets():
    found = paired(MIL, ERM, "accuracy", over="seeds")
    assert found is not None
    assert found.n == 3
    assert found.stdev == pytest.approx(math.sqrt(1.5e-4 / 2))  # of .105, .105, .09, whose mean is .1


def test_a_seed_that_lacks_a_target_is_no_mean_and_nothing_shared_is_none():
    assert paired(MIL[:-1], ERM, "accuracy", over="seeds").n == 2  # pyright: ignore[reportOptionalMemberAccess]
    assert paired(MIL[:-1], ERM, "accuracy").n == 5  # pyright: ignore[reportOptionalMemberAccess]
    assert paired([record("mil", 9, {"films": 0.5})], ERM, "accuracy") is None


def test_every_method_against_erm_with_holm():
    found = {entry.label: entry for entry in against_baseline([*ERM, *MIL, *HMA], "accuracy")}
    assert set(found) == {"mil", "hma"}
    assert found["mil"].rival == "erm"
    assert found["mil"].p == pytest.approx(2 * found["mil"].pairs.p)  # the smaller of two
    assert found["hma"].p == found["hma"].pairs.p
    said = baseline_note(list(found.values()), "accuracy")
    assert said == (
        "significantly different from erm (paired t over 6 seed-target pairs, Holm-corrected p < 0.05): "
        "mil +10.0 (p < 0.001); the other 1 does not"
    )


def test_no_claim_without_three_seeds_or_without_the_baseline():
    assert against_baseline(leave_one_out(), "accuracy") == []
    assert against_baseline([*MIL, *HMA], "accuracy") == []
    assert baseline_note([], "accuracy") is None
    assert str(baseline_note(against_baseline([*ERM, *HMA], "accuracy"), "accuracy")).startswith(
        "no method differs from erm"
    )


def test_the_baseline_is_of_the_same_data_and_settings():
    other = grid("erm", {"films": [0.1, 0.2, 0.3]}, data="other", fingerprint="f1")
    assert {e.rival for e in against_baseline([*ERM, *MIL, *other], "accuracy")} == {"erm (reviews)"}
    wide = [
        *grid("erm", {"films": [0.1, 0.2, 0.3]}, encoder="mlp"),
        *grid("mil", {"films": [0.2, 0.3, 0.5]}, encoder="mlp"),
    ]
    found = {entry.label: entry.rival for entry in against_baseline([*ERM, *MIL, *wide], "accuracy")}
    assert found == {"mil (minilm)": "erm (minilm)", "mil (mlp)": "erm (mlp)"}
    unlike = grid("mil", {"films": [0.2, 0.3, 0.5]}, encoder="cnn")
    assert against_baseline([*ERM, *wide[:3], *unlike], "accuracy") == []


def test_the_page_has_the_tests(tmp_path):
    text = written(tmp_path, [*ERM, *MIL, *HMA])
    assert "Against the baseline" in text
    assert "+10.0 ± 0.4" in text
    assert "Holm-corrected for 2 comparisons" in text
    assert "Against the baseline" not in written(tmp_path, leave_one_out())


def test_names_in_the_tests_are_escaped(tmp_path):
    wild = grid("<b>x</b>", {"films": [0.2, 0.3, 0.5]})
    text = written(tmp_path, [*ERM, *wild])
    assert "Against the baseline" in text
    assert "<b>x</b>" not in text


def test_p_in_words():
    assert (format_p(None), format_p(0.0001), format_p(0.0123)) == ("–", "< 0.001", "0.012")
