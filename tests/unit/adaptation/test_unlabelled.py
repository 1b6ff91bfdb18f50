"""Unlabelled examples: class mix and prototypes follow them, and are refused if the sources lose too much."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.adaptation.adapt import Terms, ledger_of
from holdfast.adaptation.unlabelled import adapt_unlabelled
from holdfast.api import compare
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.readers.in_memory import as_dataset
from holdfast.data.unlabelled import add_unlabelled
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import load_model

OPTIONS = {"steps": 60, "lr": 0.01, "batch": 32, "device": "cpu"}
SETTINGS = {"encoder.hidden": [8], "every": 30}
T3A = {"predict": "t3a", "predict.weight": 0.9, "predict.size": 50, "predict.temperature": 0.1, "every": 30}


def vectors(count: int, seed: int, *, share: float = 0.5, shift: float = 0.0, gap: float = 1.0):
    """Two overlapping classes; `share` of the examples are of class 1."""
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < share).astype(int)
    x = rng.normal(size=(count, 3)) + np.outer(2 * y - 1, [gap, 0, 0]) + np.asarray([0, shift, 0])
    return x.astype(np.float32), y


def sources(size: int = 500, gap: float = 1.0) -> Dataset:
    parts = [vectors(size, seed, gap=gap) for seed in range(3)]
    x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return as_dataset(x, y, np.repeat(["a", "b", "c"], size))


def unlabelled(x: np.ndarray) -> Dataset:
    return replace(as_dataset(x, np.zeros(len(x), dtype=int), ["new"] * len(x)), name="new")


def test_the_class_mix_is_corrected_in_the_saved_model(tmp_path):
    x, truth = vectors(500, 9, share=0.1)
    dataset = add_unlabelled(sources(), unlabelled(x))
    model = DomainClassifier("erm", settings=SETTINGS, **OPTIONS).fit_dataset(dataset, folder=tmp_path / "model")
    shift = model.record_.analysis["label-shift"]
    assert shift["refused"] == ""
    assert abs(shift["target"][1] - 0.1) < 0.08
    assert any("corrected for the class mix" in note for note in model.notes_)
    plain = DomainClassifier("erm", settings=SETTINGS, **OPTIONS).fit_dataset(sources())
    accuracy = [float((each.predict_proba(x).argmax(1) == truth).mean()) for each in (plain, model)]
    assert accuracy[1] > accuracy[0] + 0.05
    saved = DomainClassifier.from_pretrained(tmp_path / "model", device="cpu")
    np.testing.assert_allclose(saved.predict_proba(x), model.predict_proba(x), atol=1e-6)
    assert saved.record_.analysis["label-shift"] == shift


def test_an_equal_mix_is_left_alone():
    dataset = add_unlabelled(sources(), unlabelled(vectors(300, 7)[0]))
    model = DomainClassifier("erm", settings=SETTINGS, **OPTIONS).fit_dataset(dataset)
    plain = DomainClassifier("erm", settings=SETTINGS, **OPTIONS).fit_dataset(sources())
    assert model.record_.analysis["label-shift"]["refused"]
    x, _ = vectors(50, 8)
    np.testing.assert_allclose(model.predict_proba(x), plain.predict_proba(x), atol=1e-6)


def test_an_adaptation_that_fails_is_replaced_by_the_plain_training():
    """Aligning with equal examples far away removes the information about the classes."""
    constant = add_unlabelled(sources(), unlabelled(np.full((200, 3), 20.0, dtype=np.float32)))
    heavy = {**SETTINGS, "method.weight": 100.0}
    model = DomainClassifier("coral", settings=heavy, **OPTIONS).fit_dataset(constant)
    report = model.record_.analysis["unlabelled"]
    assert "points of accuracy on held-out rows of the sources" in report["refused"]
    assert any("was refused" in note for note in model.notes_)
    assert model.record_.spec["method_args"]["unlabelled"] == "none"
    shifted = add_unlabelled(sources(), unlabelled(vectors(200, 6, shift=4.0)[0]))
    mild = DomainClassifier("coral", settings={**SETTINGS, "method.weight": 0.1}, **OPTIONS).fit_dataset(shifted)
    assert mild.record_.analysis["unlabelled"]["refused"] == ""
    assert mild.record_.stages[0]["sizes"]["unlabelled"] == {"new": 200}


def test_a_model_folder_is_corrected_without_training(tmp_path):
    folder = tmp_path / "model"
    DomainClassifier("erm", settings=SETTINGS, **OPTIONS).fit_dataset(sources(), folder=folder)
    x, truth = vectors(500, 9, share=0.1)
    new, terms = unlabelled(x), Terms(device="cpu")
    with pytest.raises(BadInput, match="without held-out examples of the earlier domains"):
        adapt_unlabelled(folder, new, terms)
    before = DomainClassifier.from_pretrained(folder, device="cpu").predict_proba(x)
    result = adapt_unlabelled(folder, new, terms, earlier=[sources()])
    assert (result.refused, result.version) == ("", 2)
    after = DomainClassifier.from_pretrained(folder, device="cpu").predict_proba(x)
    weights = np.asarray(result.model.record.analysis["label-shift"]["weights"])
    expected = before * weights / (before * weights).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(after, expected, atol=1e-5)
    assert (after.argmax(1) == truth).mean() > (before.argmax(1) == truth).mean() + 0.05
    assert ledger_of(folder).version(2).method == "label-shift"
    again = adapt_unlabelled(folder, new, terms, earlier=[sources()])
    assert (again.version, len(ledger_of(folder).versions)) == (2, 2)
    assert "created version 2 already" in again.notes[0]
    with pytest.raises(BadInput, match="too few to estimate the class mix"):
        adapt_unlabelled(folder, unlabelled(x[:5]), terms, earlier=[sources()])


APART = sources(100, gap=2.0)  # for prototypes
NEW = vectors(80, 9, shift=0.5, gap=2.0)[0]
FAR = np.tile(np.asarray([[3.0, 30, 0], [-3.0, -30, 0]], dtype=np.float32), (40, 1))  # the first feature hardly counts


def fitted(dataset: Dataset, **settings: object) -> DomainClassifier:
    options = {**T3A, **{name.replace("_", "."): value for name, value in settings.items()}}
    classifier = DomainClassifier(
        "erm", encoder="features", steps=60, batch=32, lr=0.05, device="cpu", keep_sample=40, settings=options
    )
    return classifier.fit_dataset(dataset)


def test_prototypes_of_unlabelled_examples_are_part_of_the_saved_model(tmp_path):
    model = fitted(add_unlabelled(APART, unlabelled(NEW)))
    report = model.record_.analysis["t3a"]
    assert (report["refused"], report["examples"]) == ("", 80)
    assert model.record_.stages[0]["sizes"]["unlabelled"] == {"new": 80}
    assert any(note.startswith("prototypes follow 80 unlabelled examples") for note in model.notes_)
    recall = model._model().model.recall
    assert recall is not None
    assert len(recall) == 80
    saved = DomainClassifier.from_pretrained(model.save_pretrained(tmp_path / "model"), device="cpu")
    np.testing.assert_allclose(saved.predict_proba(NEW), model.predict_proba(NEW), atol=1e-6)
    assert saved.delete_examples(NEW[:30]) == 30  # they are stored under their content
    plain = fitted(APART)
    assert not np.allclose(plain.predict_proba(NEW), model.predict_proba(NEW), atol=1e-3)


def test_null_control_follows_source_examples():
    dataset = add_unlabelled(APART, unlabelled(NEW))
    control = fitted(dataset, predict_unlabelled="source")
    recall = control._model().model.recall
    assert recall is not None
    assert len(recall) == 80
    assert control.delete_examples(NEW) == 0
    assert control.delete_examples(np.asarray(APART.raw.take(np.arange(300)))) == 80
    off = fitted(dataset, predict_unlabelled="none")
    np.testing.assert_allclose(off.predict_proba(NEW), fitted(APART).predict_proba(NEW), atol=1e-6)
    assert "t3a" not in off.record_.analysis
    with pytest.raises(BadInput, match="`unlabelled` must be target, source or none"):
        fitted(dataset, predict_unlabelled="all")


def test_prototypes_that_harm_the_sources_are_refused():
    model = fitted(add_unlabelled(APART, unlabelled(FAR)))
    report = model.record_.analysis["t3a"]
    assert "points of accuracy on held-out rows of the sources" in report["refused"]
    assert report["valid"]["with"] < report["valid"]["without"] - 0.02
    assert any("prototypes of unlabelled examples were refused" in note for note in model.notes_)
    plain = fitted(APART)
    np.testing.assert_allclose(model.predict_proba(NEW), plain.predict_proba(NEW), atol=1e-6)
    scores = [np.mean([each["accuracy"] for each in m.record_.stages[0]["valid"].values()]) for m in (model, plain)]
    assert scores[0] == pytest.approx(report["valid"]["without"])


def test_folder_follows_unlabelled_examples_without_training(tmp_path):
    folder, terms = tmp_path / "model", Terms(device="cpu")
    fitted(APART).save_pretrained(folder)
    before = load_model(folder)
    result = adapt_unlabelled(folder, unlabelled(NEW), terms)  # held-out examples are in the folder's sample
    assert (result.refused, result.version) == ("", 2)
    assert ledger_of(folder).version(2).method == "t3a"
    assert result.examples == {"a": 20, "b": 20, "c": 20}
    after = load_model(folder)
    assert after.model.recall is not None
    assert len(after.model.recall) == 80
    raw = unlabelled(NEW).raw
    changed = (after.probabilities(raw).argmax(1) != before.probabilities(raw).argmax(1)).mean()
    assert result.model.record.analysis["t3a"]["changed"] == pytest.approx(changed)
    refused = adapt_unlabelled(folder, unlabelled(FAR), terms)
    assert "points of accuracy" in refused.refused
    assert ledger_of(folder).current == 2


def test_comparison_uses_the_unlabelled_rows_instead_of_the_test_inputs(tmp_path):
    options = {"methods": "erm", "seeds": 1, "encoder": "features", "steps": 60, "lr": 0.05, "baselines": False}
    records = compare(APART, unlabelled=unlabelled(FAR), out=tmp_path / "far", settings=T3A, **options).records
    assert all(record.stages[0]["sizes"]["unlabelled"] == {"new": 80} for record in records)
    assert all("collapsed" in record.stages[0]["adapted"] for record in records)
    plain = compare(APART, out=tmp_path / "plain", settings=T3A, **options).records
    accuracy = [
        np.mean([next(iter(r.stages[0]["test"].values()))["accuracy"] for r in each]) for each in (plain, records)
    ]
    assert accuracy[0] > accuracy[1] + 0.1  # prototypes of far examples harm, those of the target do not
