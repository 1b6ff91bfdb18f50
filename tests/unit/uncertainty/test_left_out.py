"""Outputs of runs that left out a domain: stored with models of `compare` and `fit` to calibrate predictions."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.api import compare, refit
from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.estimator import DomainClassifier, DomainRegressor
from holdfast.folders.format import load_model
from holdfast.record import load
from holdfast.train.progress import ProgressListener
from holdfast.uncertainty.left_out import FILE, LeftOut, Projection

DATA = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
QUICK = {"steps": 20, "settings": {"encoder.hidden": [8]}}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    done = compare(DATA, methods="erm", seeds=1, out=out, model=out / "model", baselines=False, **QUICK)
    return done, refit(done, out / "model")


def test_model_of_a_comparison_has_the_outputs_that_its_runs_were_scored_on(chosen):
    done, folder = chosen
    left_out = load_model(folder).left_out
    unseen = left_out.unseen
    assert left_out.names == list(DATA.domains)
    assert len(unseen.y) == len(DATA)
    for record in done.records:
        ((domain, scores),) = record.stages[-1]["test"].items()
        own = unseen.domain == DATA.domains.index(domain)
        assert (unseen.outputs[own].argmax(axis=1) == unseen.y[own]).mean() == pytest.approx(scores["accuracy"])
    assert unseen.outputs.sum(axis=1) == pytest.approx(1, abs=1e-5)
    valid = left_out.valid
    assert len(valid.y) == sum(sum(record.stages[-1]["sizes"]["valid"].values()) for record in done.records)
    assert (valid.domain != valid.target).all()


def test_features_are_those_of_the_saved_model(chosen):
    _, folder = chosen
    saved = load_model(folder)
    projection, coordinates = saved.left_out.projection, saved.left_out.coordinates
    assert projection is not None
    assert coordinates.std(axis=0) == pytest.approx(1, abs=0.25)
    features = saved.model.encode(DATA.raw.take(np.arange(len(DATA)))).detach().numpy()
    computed = projection(features)
    for row in coordinates[:5]:
        assert np.abs(computed - row).max(axis=1).min() < 1e-3


def test_a_model_of_a_sample_of_the_rows_has_features_too(tmp_path):
    settings = {**QUICK["settings"], "rows": 90}
    done = compare(
        DATA,
        methods="erm",
        seeds=1,
        out=tmp_path,
        model=tmp_path / "model",
        baselines=False,
        steps=20,
        settings=settings,
    )
    saved = load_model(refit(done, tmp_path / "model"))
    assert done.decision.spec["rows"] == 90
    assert saved.left_out.projection is not None


def test_combination_stores_the_outputs_of_its_mixture(tmp_path):
    done = compare(DATA, methods="erm", seeds=2, out=tmp_path, **QUICK)
    choice = next(record for record in done.records if record.spec["method"] == "ensemble(stack)")
    decision = replace(done.decision, label="ensemble(stack)", spec=choice.spec)
    saved = load_model(refit(replace(done, summary=replace(done.summary, decision=decision)), tmp_path / "model"))
    assert saved.members
    assert all(member.saved.left_out is None for member in saved.members)
    for record in load(tmp_path):
        if record.spec["method"] == "ensemble(stack)":
            ((domain, scores),) = record.stages[-1]["test"].items()
            own = saved.left_out.unseen.take(saved.left_out.unseen.domain == DATA.domains.index(domain))
            assert (own.outputs.argmax(axis=1) == own.y).mean() == pytest.approx(scores["accuracy"])


def test_fit_leaves_out_each_domain_on_request(tmp_path):
    settings = {"encoder.hidden": [8]}
    DomainClassifier(steps=20, left_out=True, settings=settings).fit_dataset(DATA, folder=tmp_path / "with")
    DomainClassifier(steps=20, settings=settings).fit_dataset(DATA, folder=tmp_path / "without")
    left_out = load_model(tmp_path / "with").left_out
    assert len(left_out.unseen.y) == len(DATA)
    assert load_model(tmp_path / "without").left_out is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["with", "without"]  # the runs are deleted


def test_numbers_are_stored_in_the_units_of_the_target():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3)).astype(np.float32)
    y, domains = 500 + 30 * X[:, 0], np.repeat(["a", "b", "c"], 30)
    model = DomainRegressor(steps=60, left_out=True).fit(X, y, domains=domains)
    unseen = model._model().left_out.unseen
    assert np.sort(unseen.y) == pytest.approx(np.sort(y))
    assert np.abs(unseen.outputs[:, 0] - unseen.y).mean() < 20


def test_one_domain_cannot_be_left_out():
    with pytest.raises(BadInput, match="at least 2 domains"):
        DomainClassifier(steps=5, left_out=True).fit([[0.0], [1.0], [0.1], [0.9]], [0, 1, 0, 1])


def test_damaged_files_are_refused(chosen, tmp_path):
    _, folder = chosen
    left_out = load_model(folder).left_out
    path = left_out.save(tmp_path / FILE)
    same = LeftOut.load(path)
    assert np.array_equal(same.outputs, left_out.outputs)
    tree = load_tree(path)
    wrong = {
        "lengths": {**tree, "y": tree["y"][:-1]},
        "domain": {**tree, "target": tree["target"] + 7},
        "class": {**tree, "y": tree["y"] + 2},
        "NaN": {**tree, "outputs": tree["outputs"] * float("nan")},
        "axes": {name: value for name, value in tree.items() if name != "axes"},
    }
    for reason, content in wrong.items():
        save_tree(tmp_path / "wrong", content)
        with pytest.raises(TypeError, match=reason):
            LeftOut.load(tmp_path / "wrong")


def test_axes_of_constant_and_of_wide_features():
    assert Projection.fit(np.ones((5, 3), dtype=np.float32)) is None
    assert Projection.fit(np.zeros((5, 0), dtype=np.float32)) is None
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 2)) @ np.asarray([[3.0, 0, 0], [0, 1, 0]]) + 5
    coordinates = Projection.fit(features)(features)
    assert coordinates.shape == (200, 2)
    assert coordinates.mean(axis=0) == pytest.approx(0, abs=1e-3)
    assert coordinates.std(axis=0) == pytest.approx(1, abs=1e-2)


def test_the_final_training_is_noted_and_its_steps_are_reported(chosen, tmp_path):
    notes, steps = [], []

    class Watch(ProgressListener):
        def note(self, sentence):
            notes.append(sentence)

        def step(self, metrics):
            steps.append(metrics)

    refit(chosen[0], tmp_path / "model", watch=Watch())
    assert notes[0] == f"training {chosen[0].decision.label} on all domains"
    assert steps
