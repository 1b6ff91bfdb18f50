"""The study of the default settings: rows, the chosen rate, and one job with baselines and combinations."""

import pytest

from holdfast.data.synthetic import world
from holdfast.record import load
from studies import default
from studies.default import DATASETS, ROWS, DefaultRunner, Setting, comparison_of, row_jobs


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
