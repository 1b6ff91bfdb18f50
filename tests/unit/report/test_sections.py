"""Sections of analyses: choice of runs, presence in the report, escaping, unique ids of figures."""

import re

import pytest

from holdfast.report.page import analysis_sections
from holdfast.report.sections import MAX_RUNS, mean_cell, select_runs
from holdfast.stats.labels import grouped
from holdfast.train.analyses import missing_analysis_notes
from tests.unit.analysis import test_memory_use
from tests.unit.analysis.test_domain_distance import result as distance
from tests.unit.analysis.test_projection import stored as projection
from tests.unit.report.drawing import SCRIPT
from tests.unit.report.fake_records import analysed, record
from tests.unit.report.test_page import written

RESULTS = {
    "a-distance": distance(**{SCRIPT: 1.0}),
    "projection": projection("features", "memory", "backbone") | {"targets": [SCRIPT]},
    "memory-use": test_memory_use.stored(2.0),
}


def test_the_first_seed_of_each_method_is_shown_target_by_target():
    runs = [
        analysed(method, seed, target, projection={"targets": [target]})
        for method in ("mil", "erm")
        for seed in (1, 0)
        for target in ("y", "x")
    ]
    selected, left_out = select_runs(grouped([*runs, analysed("coral", projection=None)]), "projection")
    assert [(run.target, run.label, run.seed) for run in selected] == [
        ("x", "erm", 0), ("x", "mil", 0), ("y", "erm", 0), ("y", "mil", 0),
    ]  # fmt: skip
    assert left_out == 4
    many = [analysed(f"m{i}", projection={"targets": ["t"]}) for i in range(MAX_RUNS + 3)]
    selected, left_out = select_runs(grouped(many), "projection")
    assert (len(selected), left_out) == (MAX_RUNS, 3)


@pytest.mark.parametrize("name", RESULTS)
def test_every_analysis_has_a_section_if_records_have_its_result(name):
    groups = grouped([analysed("erm"), analysed("mil", **{name: RESULTS[name]})])
    (section,) = analysis_sections(groups, "accuracy")
    assert section.figure or section.runs
    assert analysis_sections(grouped([analysed("erm"), analysed("mil", **{name: None})]), "accuracy") == []


@pytest.mark.slow
def test_report_escapes_names_and_gives_figures_unique_ids(tmp_path):
    text = written(tmp_path, [analysed(SCRIPT, **RESULTS), *(analysed("erm", seed, **RESULTS) for seed in (0, 1))])
    assert SCRIPT not in text
    assert "b<i>" not in text
    assert "b&lt;i&gt;" in text
    ids = re.findall(r'<div class="chart[^"]*" id="([^"]+)', text)
    assert len(ids) == len(set(ids)) >= 10
    assert "1 more run" in text
    assert "more run" not in written(tmp_path, [analysed("erm", **RESULTS)])


def test_analyses_without_results_are_named_with_their_requirements():
    needs = {"memory-use": "a memory", "segment-mass": "a memory", "projection": "rows"}
    records = [analysed("erm", projection={}, memory_use=None), record("mil", 0, {"t": 0.5})]
    (note,) = missing_analysis_notes(records, needs)
    assert "memory-use, segment-mass" in note
    assert "a memory" in note


def test_mean_cell_ignores_missing_values():
    assert mean_cell([1.0, None, 2.0], 1) == ("1.5", 1.5)
    assert mean_cell([None]) == ("–", None)
