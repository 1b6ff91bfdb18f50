"""The field trials: sets as files, records of trials, verdicts and tables."""

import json
import os

import numpy as np
import pytest

from holdfast.record import RunRecord
from holdfast.train.training_data import training_data
from studies import field_page
from studies.field import Trial, scores_of, summary
from studies.field_commands import TIMED_OUT, Finished, busy, example, run
from studies.field_sets import BUNDLED, SETS, Sources, prepare
from studies.field_sklearn import evaluate, metrics_of, read_rows

MACHINE = {"device": "cpu", "python": "3.11", "torch": "2.7", "cores": 2, "cpu": "x", "threads": 1}


def record(method, seed, scores, **spec) -> RunRecord:
    """A finished run with one score per domain."""
    settings = {"method": method, "seed": seed, "metric": "accuracy", "task": "classify", "encoder": "mlp", **spec}
    test = {domain: {"accuracy": value} for domain, value in scores.items()}
    stage = {"train": ["z"], "step": 1, "valid": {}, "test": test}
    return RunRecord(settings, f"to-{'+'.join(scores)}", [stage], {"version": "0", "commit": "c"}, MACHINE, {})


def trial(**changes):
    """A recorded trial without faults."""
    scores = {"a": {"0": 0.9, "1": 0.88}, "b": {"0": 0.8, "1": 0.82}}
    lower = {domain: {seed: value - 0.1 for seed, value in seeds.items()} for domain, seeds in scores.items()}
    return {
        "set": "iris", "budget": "90s", "busy": False, "device": "", "code": 0, "error": "", "limit": 90.0,
        "seconds": 80.0, "cpu": 70.0, "erm_seconds": 30.0, "metric": "accuracy", "task": "classify",
        "methods": {"erm": {"seeds": 2, "rows": 0}}, "failed": [], "machine": {"cores": 2, "device": "cpu"},
        "code_version": {}, "choice": "erm", "erm": "erm", "simple": ["majority"],
        "averages": {"erm": 0.85, "majority": 0.75}, "scores": {"erm": scores, "majority": lower},
    } | changes  # fmt: skip


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_sets_are_read_alike_by_holdfast_and_by_scikit_learn(name, tmp_path):
    entry, path = SETS[name], prepare(name, Sources(), tmp_path)
    dataset, rows = training_data(str(path), columns=entry.columns), read_rows(path, entry)
    assert len(dataset) == len(rows.label)
    assert sorted(dataset.domains) == sorted(np.unique(rows.domain))
    before = path.read_bytes()
    assert prepare(name, Sources(), tmp_path / "again").read_bytes() == before
    row = example(entry, path)
    assert entry.label not in row
    assert entry.domain not in row


def test_scikit_learn_scores_every_domain(tmp_path):
    scores = evaluate(prepare("wine", Sources(), tmp_path), SETS["wine"])
    assert (scores["rows"], scores["domains"], scores["classes"]) == (178, 3, 3)
    assert min(values["accuracy"] for values in scores["scores"].values()) > 0.7
    numbers = metrics_of(np.asarray([1.0, 3.0]), np.asarray([1.0, 1.0]), numbers=True)
    assert numbers == {"rmse": pytest.approx(2**0.5), "mae": 1.0}


@pytest.mark.slow
def test_commands_report_exit_code_error_and_time(tmp_path):
    with busy(1):
        done = run(["compare", "none.csv", "--json"], tmp_path, seconds=60)
    assert done.code == 2
    assert "none.csv" in done.error
    assert 0 < done.seconds < 60
    assert done.cpu > 0
    assert run(["list", "methods"], tmp_path / "short", seconds=0.01).code == TIMED_OUT


def test_summary_has_choice_erm_and_the_time_of_the_first_complete_erm(tmp_path):
    runs = [record("erm", seed, {name: 0.5 + seed / 10}) for seed in (0, 1) for name in ("a", "b")]
    runs += [record("erm", 0, {"a": 0.1}, rows=50), record("majority", 0, {"a": 0.2, "b": 0.4})]
    for number, each in enumerate(runs):
        path = each.save(tmp_path / "records")
        os.utime(path, (1000 + number, 1000 + number))
    fields = [json.loads(each.text()) for each in runs]
    document = {"records": fields, "choice": {"label": "erm", "spec": runs[0].spec}, "time": {"budget": 45.0}}
    finished = Finished(0, 990.0, 40.0, 35.0, json.dumps(document), "")
    measured = summary(Trial("iris"), finished, tmp_path)
    assert measured["limit"] == 45.0
    assert measured["erm_seconds"] == 11.0
    assert measured["methods"]["erm"] == {"seeds": 2, "rows": 0}
    assert (measured["choice"], measured["erm"], len(measured["simple"])) == ("erm", "erm", 1)
    assert measured["averages"]["erm"] == pytest.approx(0.55)
    assert measured["scores"]["erm"] == {"a": {"0": 0.5, "1": 0.6}, "b": {"0": 0.5, "1": 0.6}}
    assert field_page.verdicts(measured, {}) == []
    without = summary(Trial("iris", "9s"), Finished(2, 990.0, 40.0, 35.0, "", "no column"), tmp_path / "none")
    assert (without["limit"], without["choice"], without["erm_seconds"]) == (9.0, None, None)
    assert field_page.verdicts(without, {}) == ["failed", "late"]


def test_verdicts_name_what_is_wrong():
    sklearn = {"iris": {"scores": {"a": {"accuracy": 0.99}, "b": {"accuracy": 0.95}}}}
    assert field_page.verdicts(trial(), {}) == []
    assert field_page.verdicts(trial(), sklearn) == ["worse than scikit-learn"]
    scores = trial()["scores"]
    swapped = trial(scores={"erm": scores["majority"], "majority": scores["erm"]})
    assert field_page.verdicts(swapped, {}) == ["worse than majority"]
    assert field_page.verdicts(trial(seconds=95.0, erm_seconds=None), {}) == ["late", "no erm"]
    assert field_page.verdicts(trial(limit=None), {}) == []
    assert field_page.verdicts(trial(set="births"), {}) == ["numbers read as classes"]
    assert field_page.verdicts(trial(failed=[{"method": "mil"}]), {}) == ["1 runs failed"]
    lower = field_page.paired("rmse", {"a": {"0": 1.0}, "b": {"0": 1.1}}, {"a": 2.0, "b": 2.0})
    assert lower.better
    averaged = field_page.paired("accuracy", {"a": {"0": 0.5}}, {"a": {"0": 0.4, "1": 0.2}})
    assert averaged.shown("accuracy") == "+20.00"


def test_choice_that_combines_runs_is_found_by_its_settings():
    runs = [record("erm", 0, {"a": 0.5}), record("stack", 0, {"a": 0.7}), record("stack", 1, {"a": 0.9})]
    scores = scores_of(runs, {"label": "stack", "spec": runs[1].spec})
    assert scores["choice"] == "stack"
    assert scores["averages"]["stack"] == pytest.approx(0.8)
