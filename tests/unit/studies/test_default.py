"""The study of the default settings: rows, the chosen rate, and one job with baselines and combinations."""

import pytest

from holdfast.data.synthetic import world
from holdfast.record import load
from studies import default
from studies.default import DATASETS, FIRST, ROWS, DefaultRunner, RowJob, Setting, comparison_of


@pytest.fixture
def small(monkeypatch):
    """A small data set with short runs in place of those of the study."""
    options = {"plan": "leave-one-out", "metric": "accuracy", "steps": 8, "every": 4, "encoder.hidden": [4]}
    data = world("vector", "rotation", domains=3, size=30, seed=0)
    setting = Setting(title="small", load=lambda _: data, settings=options)
    monkeypatch.setitem(DATASETS, "small", setting)
    return setting


def test_rows_of_the_first_version_have_its_settings():
    rated, digits = DATASETS["rated"], DATASETS["digits"]
    for name in ("first", "searched"):
        assert {**rated.row(name), **FIRST} == rated.row(name)
    assert (rated.row("first")["lr"], digits.row("first")["lr"]) == (5e-5, 1e-3)
    assert rated.row("searched", 3e-5)["lr"] == 3e-5
    assert rated.row("first")["encoder.length"] == 128
    assert not {"lr", "steps", "schedule", "average"} & set(rated.row("default"))


def test_one_job_writes_baselines_network_and_stack(small, tmp_path):
    runner = DefaultRunner(tmp_path, tmp_path, {"small": comparison_of("small")})
    job = RowJob("run", "small", "", "", "default", 0.0, 0)
    runner.run(job)
    assert job.path(tmp_path).is_file()
    records = list(load(tmp_path / "run" / "small" / "default"))
    assert {record.spec["method"] for record in records} == {"majority", "logistic", "erm", "stack"}
    assert {record.episode for record in records} == {"to-domain-0", "to-domain-1", "to-domain-2"}


def test_the_rate_is_chosen_on_source_validation(small, tmp_path, capsys):
    runner = DefaultRunner(tmp_path, tmp_path, {"small": comparison_of("small")})
    for job in default.search_jobs(["small"], runner)[:4]:
        runner.run(job)
    assert not any(record.stages[-1]["test"] for record in load(tmp_path / "search" / "small"))
    default.choose(["small"], tmp_path)
    assert "small: {'rate': " in capsys.readouterr().out
    jobs = default.row_jobs(["small"], list(ROWS), tmp_path)
    assert len(jobs) == default.SEEDS * len(ROWS)
    assert {job.rate in small.rates for job in jobs if job.row == "searched"} == {True}
