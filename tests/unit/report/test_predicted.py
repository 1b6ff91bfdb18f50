"""Figures of predicted against observed numbers, and the coverage of intervals, in the report."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.data.dataset import Dataset
from holdfast.data.raw import Vectors
from holdfast.record import LOWER_IS_BETTER
from holdfast.report.page import write_report
from holdfast.report.predicted import predicted_sections
from holdfast.stats.decision import decide
from holdfast.stats.formatting import format_cell, format_number
from holdfast.stats.labels import grouped
from holdfast.stats.statistics import Cell
from holdfast.stats.summary import summarise
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((180, 3)).astype(np.float32)
    targets = 40 + 5 * x.sum(axis=1) + rng.standard_normal(180)
    domain = np.repeat([0, 1, 2], 60)
    data = Dataset("d", Vectors(x), np.zeros(180, dtype=np.int64), (), domain, ("a", "b", "c"), targets=targets,
                   task="regress")  # fmt: skip
    workspace = Workspace(data)
    runs = []
    for method in ("mean", "ridge", "erm"):
        for seed in range(3):
            spec = make_spec(data, method=method, encoder="features", steps=30, seed=seed, settings={"lr": 0.05})
            runs += [train(spec, episode, workspace)[0] for episode in workspace.episodes(spec)]
    return runs


def test_figures_show_the_predictions_of_test_domains(records, tmp_path):
    (section,) = predicted_sections(grouped(records))
    assert len(section.runs) == 9  # 3 methods, 3 target domains, the first seed
    assert section.left_out == 18
    assert [label for label, _ in section.rows] == ["mean", "features + ridge", "erm"]
    assert all(0 <= cells[1][1] <= cells[0][1] <= 100 for _, cells in section.rows)
    points = records[-1].stages[0]["predictions"]["c"]
    assert len(points["observed"]) == 60
    text = write_report(summarise(records, "rmse"), tmp_path / "r.html", title="t").read_text()
    assert "Predicted against observed" in text
    assert "RMSE" in text


def test_the_choice_takes_the_lowest_error(records):
    decision = decide(records, "rmse")
    assert decision.label in ("features + ridge", "erm")
    best = decide([r for r in records if r.spec["method"] != "ridge"], "rmse")
    assert best.label == "erm"  # not the mean, whose error is highest


def test_classifiers_have_no_such_section(records):
    stages = [{key: value for key, value in r.stages[0].items() if key != "predictions"} for r in records]
    plain = [replace(r, stages=[stage]) for r, stage in zip(records, stages, strict=True)]
    assert predicted_sections(grouped(plain)) == []


def test_errors_have_four_significant_digits():
    assert format_number(23456.789, "rmse") == "23457"
    assert format_number(0.0123456, "mae") == "0.01235"
    assert {"rmse", "mae", "interval_width"} <= set(LOWER_IS_BETTER)
    assert format_cell(Cell(12.345, 0.5, 1.0, 3), "rmse") == "12.35 ± 0.50"
