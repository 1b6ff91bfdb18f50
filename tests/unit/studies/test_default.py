"""The study of the default settings: rows, the chosen rate, and one job with baselines and combinations."""

from statistics import fmean

import pytest

from holdfast.data.synthetic import world
from holdfast.record import load
from studies import default, default_tables
from studies.default import DATASETS, ROWS, DefaultRunner, RowJob, Setting, comparison_of, row_jobs
from studies.pack_results import pack_all


@pytest.fixture
def small(monkeypatch):
    """A small data set with short runs in place of those of the study."""
    options = {"plan": "leave-one-out", "metric": "accuracy", "steps": 8, "every": 4, "encoder.hidden": [4]}
    data = world("vector", "rotation", domains=3, size=30, seed=0)
    setting = Setting(title="small", load=lambda _: data, settings=options)
    monkeypatch.setitem(DATASETS, "small", setting)
    return setting


def test_rows_that_change_nothing_are_left_out(tmp_path):
    jobs = row_jobs(["rated", "pacs", "digits"], ["default", "frozen", "128-tokens"], tmp_path)
    assert {(job.comparison, job.row) for job in jobs} == {
        ("rated", "default"), ("rated", "frozen"), ("rated", "128-tokens"), ("pacs", "default"), ("pacs", "frozen"),
        ("digits", "default"),
    }  # fmt: skip


def test_the_rate_is_chosen_on_source_validation(small, tmp_path, capsys):
    runner = DefaultRunner(tmp_path, tmp_path, {"small": comparison_of("small")})
    for job in default.search_jobs(["small"], runner)[:4]:
        runner.run(job)
    assert not any(record.stages[-1]["test"] for record in load(tmp_path / "search" / "small"))
    default.choose(["small"], tmp_path)
    assert "small: {'rate': " in capsys.readouterr().out
    jobs = default.row_jobs(["small"], list(ROWS), tmp_path)
    assert len(jobs) == default.SEEDS * (len(ROWS) - 2)  # neither frozen nor 128-tokens
    assert {job.rate in small.rates for job in jobs if job.row == "searched"} == {True}


def test_tables_compare_the_default_with_other_rows_per_seed(small, tmp_path):
    runner = DefaultRunner(tmp_path, tmp_path, {"small": comparison_of("small")})
    for row in ("default", "first", "searched", "no-search"):
        for seed in (0, 1):
            runner.run(RowJob("run", "small", "", "", row, 1e-3 if row == "searched" else 0.0, seed))
    by_row = {row.name: list(load(row)) for row in (tmp_path / "run" / "small").iterdir()}
    pack_all(tmp_path / "run")
    records = default_tables.packed_records(tmp_path)
    assert {row: len(each) for row, each in records["small"].items()} == {
        row: len(each) for row, each in by_row.items()
    }
    scores, best = default_tables.scores_of("small", records["small"])
    stack = [r.stages[-1]["test"] for r in by_row["default"] if r.spec["method"] == "stack" and r.spec["seed"] == 1]
    expected = fmean(100 * each["accuracy"] for test in stack for each in test.values())
    assert scores["default"][1] == pytest.approx(expected)
    assert scores["default"].keys() == scores["first"].keys() == {0, 1}
    assert best == "logistic, features"
    gain = fmean(scores["default"][seed] - scores["first"][seed] for seed in (0, 1))
    assert f"{gain:+.2f} (" in default_tables.main_table(records)[2]
    assert default_tables.average_table(records)[2].startswith(f"| first version, tuned | 1 | 2 | {gain:+.2f} (")
    assert len(default_tables.ablation_table(records)) == len(default_tables.combination_table(records)) == 3
    partial = {**records["small"], "first": records["small"]["first"][1:]}
    assert len(default_tables.scores_of("small", partial)[0]["first"]) == 1  # a seed without all targets


def test_many_seeds_are_compared_in_five_blocks(tmp_path):
    scores = {"default": {seed: float(seed) for seed in range(20)}, "first": dict.fromkeys(range(20), 1.0)}
    blocks = default_tables.differences(scores, "default", "first")
    assert blocks == [fmean((seed, seed + 5, seed + 10, seed + 15)) - 1 for seed in range(5)]
    few = {"default": {0: 3.0, 1: 5.0}, "first": {0: 1.0, 1: 1.0}}
    assert default_tables.average({"a": scores, "b": few}, "default", "first") == [(6.5 + 2) / 2, (7.5 + 4) / 2]
    jobs = row_jobs(["proteins"], ["default", "no-search"], tmp_path)
    assert [sum(job.row == row for job in jobs) for row in ("default", "no-search")] == [20, 5]
