import json
import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.core.errors import BadInput
from holdfast.report.words import cost_lines
from holdfast.stats.formatting import MISSING
from holdfast.stats.labels import configuration, grouped
from holdfast.stats.table import (
    best,
    columns,
    costs,
    flat_table,
    score_matrix,
    source_columns,
    stream_domains,
    tabulate,
)
from tests.unit.report.fake_records import COST, alone, leave_one_out, record, stream


def test_rows():
    erm, mil = tabulate(leave_one_out(), "accuracy").rows
    assert (erm.label, erm.baseline, mil.label, mil.baseline) == ("erm", True, "mil", False)
    assert columns([erm, mil]) == ["books", "films"]
    assert erm.cells["films"].mean == pytest.approx(0.65)
    assert erm.cells["films"].stderr == pytest.approx(0.05)
    assert erm.cells["books"].n == 2
    # per seed: (.6 + .8) / 2 = .7 and (.7 + .9) / 2 = .8
    assert erm.average.mean == pytest.approx(0.75)
    assert erm.average.stderr == pytest.approx(0.05)
    assert erm.worst == ("films", pytest.approx(0.65))
    # per seed: .8 and .85
    assert mil.average.mean == pytest.approx(0.825)
    assert mil.average.stderr == pytest.approx(0.025)


def test_order_of_records_does_not_matter():
    shuffled = leave_one_out()
    random.Random(1).shuffle(shuffled)
    assert tabulate(shuffled, "accuracy").rows == tabulate(leave_one_out(), "accuracy").rows


def test_repeated_runs_count_once():
    assert tabulate([*leave_one_out(), *leave_one_out()], "accuracy").rows == tabulate(leave_one_out(), "accuracy").rows


def test_missing_runs_have_no_cell_and_no_average():
    without = [r for r in leave_one_out() if not (r.spec["method"] == "mil" and "films" in r.stages[0]["test"])]
    _, mil = tabulate(without, "accuracy").rows
    assert list(mil.cells) == ["books"]
    assert mil.average is None
    assert mil.worst is None
    half = [r for r in leave_one_out() if (r.spec["seed"], r.episode) != (1, "to-films")]
    _, mil = tabulate(half, "accuracy").rows
    assert mil.cells["films"].n == 1
    assert (mil.average.mean, mil.average.stderr, mil.average.n) == (pytest.approx(0.8), None, 1)


def test_undefined_scores_have_no_cell():
    records = [record("erm", 0, {"films": None}), record("erm", 0, {"books": 0.5})]
    (row,) = tabulate(records, "accuracy").rows
    assert list(row.cells) == ["books"]
    assert row.average is None


def test_worst_and_best_of_losses():
    records = [record("erm", 0, {t: v}, metric="nll") for t, v in (("films", 0.3), ("books", 0.9))]
    (row,) = tabulate(records, "nll").rows
    assert row.worst == ("books", 0.9)
    assert best({"a": 0.3, "b": 0.9}, "nll") == {"a"}


def test_best_includes_ties_ignores_nan_and_needs_two_rows():
    assert best({"a": 0.3, "b": 0.1 + 0.2, "c": 0.1}, "accuracy") == {"a", "b"}
    assert best({"a": math.nan, "b": 0.1}, "accuracy") == {"b"}
    assert best({"a": 0.1}, "accuracy") == set()


def test_unknown_metrics_raise():
    with pytest.raises(BadInput, match=r"acuracy.*accuracy"):
        tabulate(leave_one_out(), "acuracy")
    assert tabulate([], "accuracy").rows == []


def test_configurations_are_not_merged():
    records = [
        record("mil", 0, {"t": 0.1}, method_args={"slots": 8}),
        record("mil", 0, {"t": 0.2}, method_args={"slots": 16}),
        record("mil", 0, {"t": 0.3}, method_args={"slots": 16}, neck="memory"),
        record("erm", 0, {"t": 0.4}),
        record("erm", 1, {"t": 0.6}),
    ]
    by_label = {row.label: row.cells["t"].mean for row in tabulate(records, "accuracy").rows}
    assert by_label == {"erm": 0.5, "mil (slots=8)": 0.1, "mil (slots=16)": 0.2, "mil + memory (slots=16)": 0.3}
    assert list(by_label) == ["erm", "mil (slots=8)", "mil (slots=16)", "mil + memory (slots=16)"]


def test_similar_specs_have_distinct_labels():
    records = [record("erm", 0, {"t": v}, lr=lr) for v, lr in ((0.1, "1"), (0.2, 1), (0.3, None))]
    records.append(record("erm", 0, {"t": 0.4}))  # no lr at all
    groups = grouped(records)
    assert len(groups) == 4
    for first, second in pairwise(groups.values()):
        assert configuration(first[0]) != configuration(second[0])


def test_data_sets_have_separate_averages():
    other = [record("erm", 0, {"x": 0.2}, data="other", fingerprint="f1")]
    by_label = {row.label: row for row in tabulate([*leave_one_out(), *other], "accuracy").rows}
    assert set(by_label) == {"erm (other)", "erm (reviews)", "mil"}
    assert by_label["erm (other)"].average is not None
    assert by_label["mil"].average is not None


def test_single_source_columns_name_the_source():
    records = [
        record("erm", 0, {"b": 0.5, "c": 0.7}, train=["a"], plan="single-source", episode="from-a"),
        record("erm", 0, {"a": 0.1, "c": 0.3}, train=["b"], plan="single-source", episode="from-b"),
    ]
    (row,) = tabulate(records, "accuracy").rows
    assert list(row.cells) == ["a>b", "a>c", "b>a", "b>c"]
    assert row.average.mean == pytest.approx(0.4)
    assert row.worst == ("b>a", 0.1)


def test_single_sources_are_shown_but_not_averaged():
    records = [alone("erm", 0, "a", 0.9, {"b": 0.5}), alone("erm", 1, "a", 0.7, {"b": 0.3})]
    records += [alone("erm", 0, "b", 0.6, {"a": 0.2}), alone("erm", 1, "b", 0.6, {"a": 0.2})]
    (row,) = tabulate(records, "accuracy").rows
    assert list(row.cells) == ["a>b", "b>a"]
    assert {name: (cell.mean, cell.n) for name, cell in row.source_cells.items()} == {
        "a>a (valid)": (pytest.approx(0.8), 2), "b>b (valid)": (pytest.approx(0.6), 2),
    }  # fmt: skip
    assert source_columns([row]) == ["a>a (valid)", "b>b (valid)"]
    assert row.average.mean == pytest.approx(0.3)
    assert row.worst == ("b>a", 0.2)
    assert [entry["target"] for entry in flat_table(tabulate(records, "accuracy"))] == [
        "a>b", "b>a", "a>a (valid)", "b>b (valid)", "average", "worst",
    ]  # fmt: skip
    assert tabulate(leave_one_out(), "accuracy").rows[0].source_cells == {}


def test_targets_of_several_episodes_have_separate_columns():
    records = [record("erm", 0, {"x": v}, plan="cross-dataset", episode=e) for e, v in (("one", 0.2), ("two", 0.4))]
    (row,) = tabulate(records, "accuracy").rows
    assert {c: cell.mean for c, cell in row.cells.items()} == {"one>x": 0.2, "two>x": 0.4}


def test_stream_rows_show_the_last_stage_in_the_order_of_learning():
    run = stream("erm", 0, [{"a": 0.2, "z": 0.9}, {"a": 0.8, "z": 0.6}], ["z", "a"])
    (row,) = tabulate([run], "accuracy").rows
    assert list(row.cells) == ["z", "a"] == stream_domains(run)
    assert row.average.mean == pytest.approx(0.7)
    assert score_matrix(run, "accuracy") == [[0.9, 0.2], [0.6, 0.8]]


def test_score_matrix_has_nan_for_missing_scores():
    run = stream("erm", 0, [{"z": 0.9}, {"a": 0.8, "z": 0.6}], ["z", "a"])
    matrix = score_matrix(run, "accuracy")
    assert math.isnan(matrix[0][1])
    assert matrix[1] == [0.6, 0.8]


def test_flat_table_has_the_documented_keys():
    table = flat_table(tabulate(leave_one_out(), "accuracy"))
    assert all(list(e) == ["method", "target", "metric", "mean", "stderr", "n"] for e in table)
    assert [(e["method"], e["target"]) for e in table] == [
        (m, t) for m in ("erm", "mil") for t in ("books", "films", "average", "worst")
    ]
    average = next(e for e in table if (e["method"], e["target"]) == ("mil", "average"))
    assert average["mean"] == pytest.approx(0.825)
    assert average["n"] == 2
    worst = next(e for e in table if (e["method"], e["target"]) == ("mil", "worst"))
    assert (worst["mean"], worst["stderr"]) == (pytest.approx(0.75), pytest.approx(0.05))
    json.dumps({"table": table}, allow_nan=False)


def test_diverged_runs_are_null_in_json():
    table = flat_table(tabulate([record("erm", 0, {"t": math.nan}, metric="nll")], "nll"))
    assert [e["mean"] for e in table] == [None, None, None]


def test_costs():
    slow = record("erm", 1, {"films": 0.5}, cost=COST | {"seconds": 30.0, "peak_memory_mb": 300.0})
    bare = replace(record("mil", 0, {"films": 0.5}), cost={})
    entries = costs(grouped([record("erm", 0, {"films": 0.5}, cost=COST | {"macs": 4_600_000}), slow, bare]))
    assert entries[0] == {
        "method": "erm",
        "seconds": 20.0,
        "examples_per_second": 500.0,
        "peak_memory_mb": 300.0,
        "learning_parameters": 1000,
        "macs": 4_600_000,
        "runs": 2,
    }
    assert entries[1]["seconds"] is entries[1]["macs"] is None  # records of older versions
    measured, unknown = ([text for text, _ in cells] for _, cells in cost_lines(entries))
    assert measured[-2:] == ["4.600", "2"]
    assert unknown[-2:] == [MISSING, "1"]
