"""Combinations of runs: chosen on source validation rows only, rows like any other, and saved as one model folder."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.adaptation.adapt import Terms
from holdfast.api import Comparison, compare, refit
from holdfast.core.checkpoint import load_tensors, save_tensors
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts, Vectors
from holdfast.data.synthetic import world
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import Member, load_model
from holdfast.prediction.combine import combine, final_members
from holdfast.prediction.export import export
from holdfast.record import RunRecord, load
from holdfast.report.page import write_report
from holdfast.stats import labels
from holdfast.stats.summary import summarise
from holdfast.train.workspace import Workspace
from holdfast.uncertainty.mixture import best_weights, calibrated, mix

DATA = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
QUICK = {"steps": 20, "settings": {"encoder.hidden": [8]}}
COMBINED = ("stack", "ensemble", "ensemble(stack)")


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Comparison:
    return compare(DATA, methods="erm", seeds=2, out=tmp_path_factory.mktemp("runs"), **QUICK)


def test_weights_prefer_the_better_member_and_ignore_noise():
    rng = np.random.default_rng(0)
    y = {"a": rng.integers(0, 2, 400), "b": rng.integers(0, 2, 50)}
    good = {d: np.where(labels[:, None] == [0, 1], 0.8, 0.2) for d, labels in y.items()}
    first = {d: rng.uniform(0.05, 0.95, len(labels)) for d, labels in y.items()}
    noise = {d: np.stack([p, 1 - p], axis=1) for d, p in first.items()}
    half = {d: 0.5 * good[d] + 0.5 * noise[d] for d in y}
    assert best_weights([good, noise], y, numbers=False) == pytest.approx([1, 0])
    assert best_weights([good, good], y, numbers=False) == pytest.approx([0.5, 0.5])
    assert best_weights([noise, half, good], y, numbers=False).argmax() == 2
    assert mix([good, noise], np.asarray([1.0, 0.0]))["a"] is good["a"]  # a weight of 0 reproduces the member exactly


def test_calibration_uses_validation_rows_only():
    logits, y = {"a": np.asarray([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])}, {"a": np.asarray([0, 1, 1])}
    hot = calibrated({"valid": logits, "test": {"t": np.asarray([[4.0, 0.0]])}}, y).test["t"]
    assert 0.5 < hot[0, 0] < 0.9  # overconfident on the validation rows, so softened


def test_records_of_combinations_are_read_again_and_reported(done, tmp_path):
    folder = done.report.parent
    assert {record.id for record in load(folder)} == {record.id for record in done.records}
    write_report(summarise(list(load(folder)), done.metric), tmp_path / "report.html", title="again")
    assert "ensemble" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_combinations_are_rows_with_members_from_runs_without_the_target(done):
    table = {entry["method"]: entry for entry in done.table() if entry["target"] == "average"}
    assert [table[name]["n"] for name in COMBINED] == [2, 1, 1]
    runs = {record.id: record for record in done.records}
    for record in done.records:
        if record.spec["method"] in COMBINED:
            (stage,) = record.stages
            members = [runs[member["id"]] for member in stage["members"]]
            (target,) = stage["test"]
            assert all(target not in run.stages[0]["train"] and run.episode == record.episode for run in members)
            assert sum(member["weight"] for member in stage["members"]) == pytest.approx(1)
            assert record.cost["seconds"] == pytest.approx(sum(run.cost["seconds"] for run in members))
            assert (done.report.parent / "records" / f"{record.id}.json").exists()


def assert_test_outputs_choose_nothing(done: Comparison) -> None:
    """Null control: random outputs on all test rows change scores, but neither members nor weights."""
    out = done.report.parent
    workspace = Workspace(done.dataset, out=out)
    runs = [record for record in done.records if record.spec["method"] not in labels.COMBINED]
    before = {record.id: record for record in combine(runs, workspace)}
    saved = {path: load_tensors(path)[0] for path in (out / "outputs").glob("*")}
    try:
        for path, tensors in saved.items():
            noise = {name: torch.randn_like(t) if name.startswith("test/") else t for name, t in tensors.items()}
            save_tensors(path, noise)
        after = {record.id: record for record in combine(runs, workspace)}
    finally:
        for path, tensors in saved.items():
            save_tensors(path, tensors)
    assert before.keys() == after.keys()
    for id, record in before.items():
        assert record.stages[0]["members"] == after[id].stages[0]["members"]
        assert record.stages[0]["valid"] == after[id].stages[0]["valid"]
    assert any(record.stages[0]["test"] != after[id].stages[0]["test"] for id, record in before.items())


def test_outputs_on_the_target_cannot_change_what_is_chosen(done):
    assert_test_outputs_choose_nothing(done)


def test_missing_outputs_are_noted(done):
    workspace = Workspace(DATA, out=done.report.parent / "elsewhere")
    assert combine([r for r in done.records if r.spec["method"] not in COMBINED], workspace) == []
    assert "outputs of 12 runs are missing" in workspace.notes[0]


def test_trained_members_have_the_mean_weights_and_one_network(done):
    stacks = [record for record in done.records if record.spec["method"] == "stack"]
    runs = {(r.spec["method"], r.spec["seed"], r.episode): r for r in done.records if r.spec["method"] not in COMBINED}
    weighted: list[RunRecord] = []
    for record, share in zip(stacks, np.linspace(0.2, 0.6, len(stacks)), strict=True):
        place = record.spec["seed"], record.episode
        members = [
            {"id": runs["logistic", *place].id, "weight": 1 - share},
            {"id": runs["erm", *place].id, "weight": share},
        ]
        weighted.append(replace(record, stages=[{**record.stages[0], "members": members}]))
    (network, share), (simple, rest) = final_members(done.records, weighted)
    assert (network["method"], simple["method"]) == ("erm", "logistic")
    assert (share, rest) == pytest.approx((0.4, 0.6))
    assert network["lr"] == final_members(done.records, weighted, rates={"erm": 0.5})[0][0]["lr"]  # it was not searched


TEXTS = [f"{word} {i}" for i, word in enumerate(["good fine", "bad poor"] * 20)]
LABELS, DOMAINS = ["yes", "no"] * 20, ["a"] * 20 + ["b"] * 20


def averaged(folder: Path, *classifiers: DomainClassifier) -> Path:
    """Save an average of two fitted classifiers with weights 0.6 and 0.4."""
    first, second = (classifier._model() for classifier in classifiers)
    return replace(first, members=(Member(0.4, second),)).save(folder)


@pytest.fixture(scope="module")
def pair() -> list[DomainClassifier]:
    made = [("bilstm", "erm", {"encoder.hidden": 4}), ("tfidf", "logistic", {})]
    return [
        DomainClassifier(m, encoder=e, steps=2, batch=4, keep_sample=20, settings=s).fit(TEXTS, LABELS, domains=DOMAINS)
        for e, m, s in made
    ]


def test_saved_average_predicts_and_adapts(tmp_path, pair):
    folder = averaged(tmp_path / "model", *pair)
    config = json.loads((folder / "config.json").read_text())
    assert (config["format"], config["members"]) == (2, [0.4])
    raw = Texts.of(TEXTS)
    alone = [classifier._model().probabilities(raw) for classifier in pair]
    saved = load_model(folder)
    assert saved.probabilities(raw) == pytest.approx(0.6 * alone[0] + 0.4 * alone[1])
    assert load_model(folder / "members" / "1").probabilities(raw) == pytest.approx(alone[1])
    assert "weighted average of 2 models" in (folder / "README.md").read_text()
    with pytest.raises(BadInput, match="different inputs: use `holdfast serve`, or export a single member"):
        export(folder, tmp_path / "model.onnx")
    classifier = DomainClassifier.from_pretrained(folder, device="cpu")
    assert classifier.predict_proba(TEXTS) == pytest.approx(saved.probabilities(raw))
    with pytest.raises(BadInput, match="cannot continue training"):
        classifier.partial_fit(TEXTS, LABELS)
    classifier.adapt(TEXTS[:10], LABELS[:10], domain="c", terms=Terms(steps=2, force=True))
    assert [saved.domains[-1] for _, saved in classifier._model().all_members] == ["c", "c"]
    assert classifier._model().members[0].saved.record.spec["method"] == "logistic"


def test_damaged_weights_of_members_raise(tmp_path, pair):
    folder = averaged(tmp_path / "model", *pair)
    config = json.loads((folder / "config.json").read_text())
    for weights in ([1.5], [-0.1], "x", [0.6, 0.6]):
        (folder / "config.json").write_text(json.dumps({**config, "members": weights}))
        with pytest.raises(BadInput, match=r"weights of its members are invalid.*fit the model again"):
            load_model(folder)


def test_choice_of_a_combination_is_trained_and_saved(done, tmp_path):
    assert done.decision is not None
    stacks = [record for record in done.records if record.spec["method"] == "ensemble"]
    decision = replace(done.decision, label="ensemble", spec=stacks[0].spec)
    chosen = replace(done, summary=replace(done.summary, decision=decision))
    folder = refit(chosen, tmp_path / "model", device="cpu")
    saved = load_model(folder)
    assert [member.record.spec["seed"] for _, member in saved.all_members] == [0, 1]
    assert saved.all_members[0].weight == pytest.approx(0.5)
    stamp = (folder / "config.json").stat().st_mtime_ns
    assert refit(chosen, folder, device="cpu") == folder
    assert (folder / "config.json").stat().st_mtime_ns == stamp  # a finished model is not trained again
    assert not (tmp_path / "model-members").exists()


def test_seeds_that_know_different_classes_are_not_averaged(tmp_path):
    rng = np.random.default_rng(0)
    y, domain = np.arange(90) % 30, np.repeat([0, 1], 45)  # one or two examples of each class per domain
    data = Dataset(
        "rare", Vectors(rng.normal(size=(90, 2)).astype(np.float32)), y, tuple(map(str, range(30))), domain, ("a", "b")
    )
    done = compare(
        data, methods="erm", seeds=3, out=tmp_path, baselines=False, steps=4, settings={"encoder.hidden": [4]}
    )
    assert any("seeds were not combined" in note for note in done.notes)
    assert {record.spec["method"] for record in done.records} == {"erm"}
