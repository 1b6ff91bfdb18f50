"""Fit with unlabelled examples: the class mix is corrected in the saved network, and failed adaptations are refused."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.adaptation.adapt import Terms, ledger_of
from holdfast.adaptation.unlabelled import adapt_unlabelled
from holdfast.core.errors import BadInput
from holdfast.data.readers.in_memory import as_dataset
from holdfast.data.unlabelled import add_unlabelled
from holdfast.estimator import DomainClassifier

OPTIONS = {"steps": 60, "lr": 0.01, "batch": 32, "device": "cpu"}
SIZE = 500
SETTINGS = {"encoder.hidden": [8], "every": 30}


def vectors(count, share, seed, *, shift=0.0):
    """Two overlapping classes; `share` of the examples are of class 1."""
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < share).astype(int)
    x = rng.normal(size=(count, 3)) + np.outer(2 * y - 1, [1.0, 0, 0]) + np.asarray([0, shift, 0])
    return x.astype(np.float32), y


def sources():
    parts = [vectors(SIZE, 0.5, seed) for seed in range(3)]
    x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return as_dataset(x, y, np.repeat(["a", "b", "c"], SIZE))


def unlabelled(x):
    return replace(as_dataset(x, np.zeros(len(x), dtype=int), ["new"] * len(x)), name="new")


def test_the_class_mix_is_corrected_in_the_saved_model(tmp_path):
    x, truth = vectors(500, 0.1, 9)
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
    dataset = add_unlabelled(sources(), unlabelled(vectors(300, 0.5, 7)[0]))
    model = DomainClassifier("erm", settings=SETTINGS, **OPTIONS).fit_dataset(dataset)
    plain = DomainClassifier("erm", settings=SETTINGS, **OPTIONS).fit_dataset(sources())
    assert model.record_.analysis["label-shift"]["refused"]
    x, _ = vectors(50, 0.5, 8)
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
    shifted = add_unlabelled(sources(), unlabelled(vectors(200, 0.5, 6, shift=4.0)[0]))
    mild = DomainClassifier("coral", settings={**SETTINGS, "method.weight": 0.1}, **OPTIONS).fit_dataset(shifted)
    assert mild.record_.analysis["unlabelled"]["refused"] == ""
    assert mild.record_.stages[0]["sizes"]["unlabelled"] == {"new": 200}


def test_a_model_folder_is_corrected_without_training(tmp_path):
    folder = tmp_path / "model"
    DomainClassifier("erm", settings=SETTINGS, **OPTIONS).fit_dataset(sources(), folder=folder)
    x, truth = vectors(500, 0.1, 9)
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
