"""Forest plot: paired differences to the baseline with intervals, and a text alternative with the same numbers."""

import pytest

from holdfast.report.charts import forest_chart, forest_lines, forest_summary
from holdfast.report.page import write_report
from holdfast.stats.statistics import interval
from holdfast.stats.summary import summarise
from tests.unit.report.drawing import SCRIPT, drawn
from tests.unit.report.fake_records import record
from tests.unit.stats.test_significance import ERM, HMA, MIL


def test_differences_are_paired_and_the_best_comes_first():
    entries = summarise([*ERM, *HMA, *MIL], "accuracy").differences
    assert [(entry.label, entry.rival, entry.pairs.n) for entry in entries] == [("mil", "erm", 6), ("hma", "erm", 6)]
    best, other = entries
    expected = interval([0.10, 0.11, 0.09, 0.11, 0.10, 0.09])
    assert expected is not None
    assert (best.pairs.difference, *best.interval) == pytest.approx((0.10, *expected))
    assert (best.significant, best.clear) == (True, True)
    assert (other.significant, other.clear) == (False, False)


def test_one_pair_has_no_interval_and_no_baseline_no_plot():
    one = [record("erm", 0, {"films": 0.5}), record("coral", 0, {"films": 0.6})]
    (entry,) = summarise(one, "accuracy").differences
    assert (entry.interval, entry.significant) == (None, False)
    assert forest_lines([entry], "accuracy")[0][1][2][0] == ""
    assert summarise(MIL, "accuracy").differences == []
    assert forest_chart([], "accuracy") is None


def test_plot_and_text_alternative_have_the_same_numbers(tmp_path):
    odd = [record(SCRIPT, r.spec["seed"], {d: s["accuracy"] for d, s in r.stages[-1]["test"].items()}) for r in MIL]
    entries = summarise([*ERM, *odd], "accuracy").differences
    plot = drawn(forest_chart(entries, "accuracy") or "")
    assert [mark.owner for mark in plot.marks] == [SCRIPT]
    assert plot.marks[0].x == pytest.approx([10.0])
    assert "compared with erm" in plot.x.title
    assert "+10.0 (+9.1 to +10.9)" in forest_summary(entries, "accuracy")
    page = write_report(summarise([*ERM, *odd], "accuracy"), tmp_path / "r.html", title="T").read_text()
    recommended, plot, table = (page.index(text) for text in ("Recommended:", 'id="forest"', 'id="score-table"'))
    assert recommended < plot < table
    assert "Differences of accuracy to erm with 95% intervals" in page
    assert SCRIPT not in page
