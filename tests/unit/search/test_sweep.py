import json

import numpy as np
import pandas as pd
import pytest

from holdfast import defaults
from holdfast.core.errors import BadInput, NothingFinished
from holdfast.data.synthetic import world
from holdfast.engines.work import Local
from holdfast.methods.erm import ERM
from holdfast.record import load
from holdfast.search.sweep import sweep
from holdfast.stats.selection import trial
from holdfast.train.progress import ProgressListener

QUICK = {"encoder": "features", "steps": 4, "seeds": 2, "device": "cpu", "cache": False}


class Count(ProgressListener):
    def __init__(self):
        self.started, self.trained = [], 0

    def start(self, total, finished):
        self.started.append((total, finished))

    def begin(self, name, steps):
        self.trained += 1


@pytest.fixture(scope="module")
def data():
    return world("vector", "rotation", domains=3, size=20)


def test_trials_are_reproducible_and_can_be_extended(data, tmp_path):
    first = sweep(data, methods=["erm", "coral"], trials=2, out=tmp_path, **QUICK)
    watch = Count()
    again = sweep(data, methods=["erm", "coral"], trials=2, out=tmp_path, watch=watch, **QUICK)
    assert watch.trained == 0
    assert watch.started == [(24, 24)]
    assert again.table() == first.table()
    more = Count()
    sweep(data, methods=["erm", "coral"], trials=3, out=tmp_path, watch=more, **QUICK)
    assert more.trained == 12
    assert [t.drawn for t in first.trials.values()][:2] == [{}, {}]
    common = [{k: v for k, v in t.drawn.items() if "." not in k} for t in first.trials.values() if t.number == 1]
    assert len(common) == 2
    assert common[0] == common[1]  # both methods share learning rates and batch sizes


@pytest.mark.slow
def test_the_best_trials_by_validation_are_chosen(data, tmp_path):
    """One row per method, the best trial per target and seed, and a config with the best settings over all of them."""
    done = sweep(data, methods=["erm", "swad(coral)"], trials=4, out=tmp_path, settings={"clip": 1.0}, **QUICK)
    cells = {(c["method"], c["target"]): c["n"] for c in done.table()}
    assert set(cells) == {(m, t) for m in ("erm", "swad(coral)") for t in (*data.domains, "average", "worst")}
    assert set(cells.values()) == {2}
    on_disk = {r.id: r for r in load(tmp_path)}
    assert len(on_disk) == 2 * 4 * 3 * 2
    assert len(done.records) == 2 * 3 * 2
    assert all(on_disk[r.id] == r for r in done.records)
    groups: dict[tuple, list[float]] = {}  # scores per method, target and seed, and per trial
    for r in on_disk.values():
        scores = [v["accuracy"] for v in r.stages[0]["valid"].values()]
        for key in ((r.spec["method"], r.episode, r.spec["seed"]), (r.spec["method"], trial(r.spec))):
            groups.setdefault(key, []).append(sum(scores) / len(scores))
    for choice in done.choices():  # regardless of the test score
        assert choice["validation"] == pytest.approx(max(groups[choice["method"], choice["episode"], choice["seed"]]))
    trials = {key[1]: sum(v) / len(v) for key, v in groups.items() if len(key) == 2 and key[0] == "swad(coral)"}
    winners = [json.loads(key) for key, score in trials.items() if score == pytest.approx(max(trials.values()))]
    path = done.best["swad(coral)"]
    assert path.name == "best-swad-coral.json"
    file = json.loads(path.read_text())
    best = [(spec["lr"], spec["method_args"].get("weight")) for spec in winners]
    assert (file["lr"], file.get("method.weight")) in best
    assert (file["method"], file["encoder"], file["steps"], file["clip"]) == ("swad(coral)", "features", 4, 1.0)
    assert not {"seed", "plan", "select", "data"} & set(file)


def test_fixed_settings_are_not_searched(data, tmp_path):
    fixed = {"lr": 0.01, "batch": 8, "settings": {"weight_decay": 0.0}}
    watch = Count()
    done = sweep(data, methods=["erm"], trials=5, out=tmp_path, watch=watch, **QUICK, **fixed)
    assert done.searched == ()
    assert watch.trained == 6  # five equal trials run once


def test_leave_one_domain_out_needs_three_domains_and_its_plan(data, tmp_path):
    with pytest.raises(BadInput, match="at least 3 domains"):
        sweep(world(domains=2, size=20), methods=["erm"], out=tmp_path, select="leave-one-domain-out", **QUICK)
    with pytest.raises(BadInput, match="--plan leave-one-out"):
        sweep(data, methods=["erm"], out=tmp_path, select="leave-one-domain-out", plan="in-domain", **QUICK)


def test_oracle_uses_its_target_rows(data, tmp_path):
    done = sweep(data, methods=["erm"], trials=2, out=tmp_path, select="oracle", **QUICK)
    for choice in done.chosen:
        (stage,) = choice.run.stages
        assert choice.score in [check["valid"][choice.episode.removeprefix("to-")] for check in stage["history"]]


def test_diverged_trials_are_skipped_and_not_repeated(data, tmp_path, monkeypatch):
    from holdfast.search import sweep as module

    def wild(space, trial):
        return {"lr": 1e30 if trial == 1 else 0.01}

    monkeypatch.setattr("holdfast.search.space.draw", wild)
    done = module.sweep(data, methods=["erm"], trials=3, out=tmp_path, **QUICK)
    assert any("erm, trial 1" in note and "diverged" in note for note in done.notes)
    assert {c["trial"] for c in done.choices()} <= {0, 2}
    watch = Count()
    module.sweep(data, methods=["erm"], trials=3, out=tmp_path, watch=watch, **QUICK)
    assert watch.trained == 0
    with pytest.raises(BadInput, match=r"trial of erm.*--lr"):
        module.sweep(data, methods=["erm"], trials=1, lr=1e30, out=tmp_path / "other", **QUICK)


def test_optuna_resumes(data, tmp_path):
    pytest.importorskip("optuna")
    first = sweep(data, methods=["erm"], trials=3, sampler="optuna", out=tmp_path, **QUICK)
    watch = Count()
    again = sweep(data, methods=["erm"], trials=3, sampler="optuna", out=tmp_path, watch=watch, **QUICK)
    assert watch.trained == 0
    assert len(watch.started) == 1
    assert again.choices() == first.choices()
    assert len(first.trials) == 3


def test_trials_have_the_same_number_of_steps(data, tmp_path, monkeypatch):
    monkeypatch.setattr(defaults, "FEWEST", 1)
    monkeypatch.setattr(defaults, "PASSES", 60)  # so that the default depends on the batch size
    options = {**QUICK, "encoder": "mlp", "steps": None, "seeds": 1, "settings": {"encoder.hidden": [4], "lr": 0.01}}
    done = sweep(data, methods=["erm"], trials=3, out=tmp_path, **options)
    assert len({trial.spec.batch for trial in done.trials.values()}) > 1
    assert {(trial.spec.steps, trial.spec.every) for trial in done.trials.values()} == {(40, 2)}
    config = json.loads(done.best["erm"].read_text())
    assert (config["average"], config["decay"], config["steps"]) == ("moving", "weights", 40)


@pytest.mark.parametrize(("task", "metric"), [("regress", "rmse"), ("multilabel", "macro_f1"), ("ordinal", "kappa")])
def test_tables_of_other_tasks_are_searched(tmp_path, task, metric):
    age = np.random.default_rng(0).normal(60, 9, 36)
    labels = {"regress": age * 2, "multilabel": np.where(age > 60, "old|tall", "tall"), "ordinal": age // 10}
    columns = {"age": age, "sex": ["f", "m", "f", None] * 9, "domain": ["a", "b", "c"] * 12}
    frame = pd.DataFrame({**columns, "label": labels[task]})
    options = {**QUICK, "encoder": "columns", "seeds": 1, "settings": {"task": task}}
    result = sweep(frame, methods=["erm"], trials=2, out=tmp_path, **options)
    assert {cell["target"] for cell in result.table()} >= {"a", "b", "c"}
    records = list(load(tmp_path / "records"))
    assert len(records) == 6
    assert all(record.spec["task"] == task and metric in str(record.stages) for record in records)


@pytest.mark.parametrize("case", ["domains", "groups", "small groups"])
def test_leave_one_domain_out_leaves_out_pairs_and_ignores_the_target(data, tmp_path, case):
    settings, plan, folds_per_run = {}, "leave-one-out", 3  # pairs of three domains or groups
    if case != "domains":
        data, settings, plan = world("vector", "rotation", domains=12, size=12), {"plan.folds": 3}, "leave-groups-out"
    if small := case == "small groups":  # scored together, so that each group has a run of its own
        data = data.subset(np.flatnonzero((data.domain != 3) | (np.arange(len(data)) % 12 < 4)))
        folds_per_run = 6
    options = {**QUICK, "settings": settings, "select": "leave-one-domain-out", "budget": "none"}
    done = sweep(data, methods=["erm"], trials=2, out=tmp_path, **options)
    records = list(load(tmp_path))
    folds = [r for r in records if r.spec["plan"] == "cross-dataset"]
    assert {r.spec["plan"] for r in records} == {"cross-dataset", plan}
    assert len(folds) == 2 * 2 * folds_per_run  # trials, seeds
    assert len(done.chosen) == 2 * 3
    for choice in done.chosen:
        sources = set(choice.run.stages[0]["train"])
        own = [r for r in folds if trial(r.spec) == choice.trial and r.spec["seed"] == choice.seed]
        own = [r for r in own if set(r.stages[0]["train"]) < sources]
        own = [r for r in own if not small or set(r.spec["plan_args"]["targets"]) <= sources]
        tested = {d: s["accuracy"] for r in own for d, s in r.stages[0]["test"].items() if small or d in sources}
        assert set(tested) == sources
        assert choice.score == pytest.approx(sum(tested.values()) / len(tested))
    assert {r.spec["select"] for r in done.summary.records} == {"leave-one-domain-out"}


def test_small_domains_that_are_scored_together_count_for_the_choice(tmp_path):
    data = world("vector", "rotation", domains=12, size=6)
    options = {**QUICK, "seeds": 1, "settings": {"plan.folds": 3}}
    done = sweep(data, methods=["erm"], trials=1, out=tmp_path, select="leave-one-domain-out", budget="none", **options)
    assert len(done.chosen) == 3
    assert all("4 domains with fewer than 10 rows" in str(choice.run.stages[0]["test"]) for choice in done.chosen)


class Late(ProgressListener):
    """Ends the time of a search after a number of runs."""

    def __init__(self, runs: int, monkeypatch):
        self.left, self.notes, self.patch = runs, [], monkeypatch

    def note(self, text):
        self.notes.append(text)

    def end(self, record):
        self.left -= 1
        if not self.left:
            self.patch.setattr("holdfast.core.stopping.Deadline.left", lambda deadline: -1.0)


def test_trials_that_are_complete_when_the_time_is_up_are_compared(data, tmp_path, monkeypatch):
    options = {**QUICK, "seeds": 1, "engine": Local(1)}
    with monkeypatch.context() as patch:
        watch = Late(8, patch)  # trial 0 of both methods, and two of three runs of trial 1
        done = sweep(data, methods=["erm", "coral"], trials=4, out=tmp_path, budget="1h", watch=watch, **options)
    assert watch.notes == ["time limit: 1 h 0 min (--budget); the same command continues"]
    assert {choice["trial"] for choice in done.choices()} == {0}
    assert len(done.chosen) == 6
    assert any("6 of 8 trials were not completed within 1 h" in note for note in done.notes)
    again = sweep(data, methods=["erm", "coral"], trials=4, out=tmp_path, budget="none", **options)
    fresh = sweep(data, methods=["erm", "coral"], trials=4, out=tmp_path / "fresh", budget="none", **options)
    assert again.choices() == fresh.choices()


def test_a_search_without_a_complete_trial_raises(data, tmp_path, monkeypatch):
    with pytest.raises(NothingFinished, match="no trial was completed within 1 min"):
        sweep(data, methods=["erm"], trials=2, out=tmp_path, budget="1m", watch=Late(1, monkeypatch), **QUICK)


class Broken(ERM):
    """A method whose steps fail."""

    def step(self, batches):
        raise RuntimeError("broken")


@pytest.mark.usefixtures("clean_catalog")
def test_a_method_that_fails_does_not_end_the_search_of_the_others(data, tmp_path):
    done = sweep(data, methods=[Broken, "erm"], trials=1, out=tmp_path, **QUICK)
    assert {choice.method for choice in done.chosen} == {"erm"}
    assert "every trial of broken failed" in done.notes
    assert any("RuntimeError: broken" in note for note in done.notes)
