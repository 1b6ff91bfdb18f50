"""Logistic regression equals that of scikit-learn, its strength is chosen on domains, and it works as any method."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from holdfast.adaptation.adapt import Terms
from holdfast.api import compare, refit
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from holdfast.data.synthetic import world
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import load_model
from holdfast.methods.linear_fit import SPARSE_STRENGTHS, STRENGTHS, Design, choose_strength, fit_linear
from holdfast.nn.backbones.bag import DIMENSION
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace

VECTORS = world("vector", "rotation", domains=4, size=40, classes=3, seed=0)
NUMBERS = replace(VECTORS, columns=tuple(map(str, range(VECTORS.raw.data.shape[1]))))  # from a table of numbers
TEXTS = world("text", "vocabulary", domains=4, size=30, classes=2, seed=0)
GRAPHS = world("graph", "none", domains=3, size=16, classes=2, seed=0)
IMAGES = world("image", "none", domains=3, size=16, classes=2, seed=0)


def trained(data: Dataset, **settings):
    workspace = Workspace(data)
    spec = make_spec(data, method=settings.pop("method", "logistic"), settings=settings)
    episode = workspace.episodes(spec)[0]
    record, assembly = train(spec, episode, workspace)
    return record, assembly, episode


def test_equals_scikit_learn_on_standardised_features():
    record, assembly, episode = trained(VECTORS, encoder="features", **{"method.C": 5.0})
    train_rows = np.concatenate([part.rows for part in episode.stages[0].train])
    x, y = VECTORS.raw.take(np.arange(len(VECTORS))).numpy(), VECTORS.y
    scaler = StandardScaler().fit(x[train_rows])
    reference = LogisticRegression(C=5.0 / x.shape[1], max_iter=2000, tol=1e-8)
    expected = reference.fit(scaler.transform(x[train_rows]), y[train_rows]).predict_proba(scaler.transform(x))
    solution = fit_linear(Design(x[train_rows], y[train_rows]), 3, 5.0)
    np.testing.assert_allclose(softmax(x @ solution.weight.T + solution.bias, axis=1), expected, atol=2e-3)
    power = record.stages[0]["history"][0]["power"]
    solution = fit_linear(Design(x[train_rows], y[train_rows]), 3, 5.0, power)
    with torch.no_grad():
        own = assembly.deploy()(torch.from_numpy(x).float()).numpy()
    np.testing.assert_allclose(own, x @ solution.weight.T + solution.bias, atol=1e-3)


def test_fits_all_columns_of_tfidf_at_once():
    record, assembly, episode = trained(TEXTS, encoder="tfidf", **{"method.C": 1.0})
    encoder, rows = assembly.encoder, np.concatenate([part.rows for part in episode.stages[0].train])
    store = encoder.prepare(TEXTS.raw.take(np.arange(len(TEXTS))))
    x = store.take(torch.arange(len(TEXTS)))
    backbone = assembly.method.model.backbone
    columns = backbone.matrix(x)
    reference = LogisticRegression(C=1.0, max_iter=2000, tol=1e-8).fit(columns[rows], TEXTS.y[rows])
    with torch.no_grad():
        own = assembly.deploy()(x).softmax(1).numpy()
    np.testing.assert_allclose(own, reference.predict_proba(columns), atol=6e-3)
    assert record.spec["steps"] == 1
    assert record.spec["tune"] == "full"
    assert record.stages[0]["history"][0]["C"] == 1.0


def test_more_classes_than_features_of_tfidf_are_saved_and_loaded(tmp_path):
    """Texts name their class; half of the classes have one example per domain, so that scikit-learn would warn."""
    classes = DIMENSION + 6
    rows = [(f"word{c} film", f"c{c:02}", d) for d in "xyz" for c in range(classes) for _ in range(1 + c % 2)]
    texts, labels, domains = (list(column) for column in zip(*rows, strict=True))
    model = DomainClassifier("logistic", encoder="tfidf", device="cpu", keep_sample=0)
    model.fit(texts, labels, domains=domains)
    assert model.record_.spec["encoder_args"] == {}
    assert model.score(texts, labels) > 0.9
    model.save_pretrained(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.encoder.settings["dimension"] == classes
    np.testing.assert_allclose(loaded.predict(Texts.of(texts)).values, model.predict_proba(texts), atol=1e-6)


def test_strength_is_chosen_on_held_out_domains():
    rng = np.random.default_rng(0)

    def domain(sign: float) -> Design:  # the second column predicts the label with another sign in the last domain
        y = np.arange(60) % 2
        x = np.stack([(2 * y - 1) + rng.normal(size=60), sign * (2 * y - 1) * 3 + 0.1 * rng.normal(size=60)], axis=1)
        return Design(np.concatenate([x, rng.normal(size=(60, 80))], axis=1).astype(np.float32), y)

    designs = [domain(1.0), domain(1.0), domain(0.0)]
    assert choose_strength(designs)[0] in STRENGTHS
    hidden = [Design(np.concatenate([x.x[:, :1] * 20, x.x[:, 2:]], axis=1), x.y) for x in designs]
    assert choose_strength(hidden)[1] == 0.5  # the column that varies most is the useful one
    noise = [Design(rng.normal(size=(30, 200)).astype(np.float32), rng.integers(0, 2, 30)) for _ in range(3)]
    assert fit_linear(Design.join(noise), 2, STRENGTHS[0]).metrics["risk"] > 0.1
    assert choose_strength([noise[0]])[0] in STRENGTHS  # one domain
    one_class = Design(noise[0].x, np.zeros(30, dtype=np.int64))
    assert fit_linear(one_class, 3, 1.0).bias.argmax() == 0


def test_strength_is_not_chosen_on_domains_of_one_class():
    """Four domains have nearly one class each: a held-out one is best predicted by chance if the penalty is strong."""
    rng = np.random.default_rng(0)
    words = rng.normal(size=(2, 400))

    def domain(share: float) -> Design:
        y = (rng.random(150) < share).astype(np.int64)
        return Design(sparse.csr_matrix((rng.random((150, 400)) < 1 / (1 + np.exp(3 - 0.7 * words[y]))) * 0.2), y)

    designs = [domain(share) for share in (0.02, 0.97, 0.03, 0.98)]
    strength, _ = choose_strength(designs, SPARSE_STRENGTHS)
    assert strength >= 10
    test = domain(0.5)
    for held_out in range(4):
        train = designs[:held_out] + designs[held_out + 1 :]
        fit = fit_linear(Design.join(train), 2, choose_strength(train)[0])
        accuracy = ((test.x @ fit.weight.T + fit.bias).argmax(1) == test.y).mean()
        assert accuracy > 0.8


def test_a_class_without_training_examples_is_never_predicted():
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    solution = fit_linear(Design(x, (x[:, 0] > 0).astype(np.int64) * 2), 3, 1000.0)
    outputs = x @ solution.weight.T + solution.bias
    assert set(outputs.argmax(axis=1)) == {0, 2}


def test_majority_is_the_most_frequent_training_class():
    record, assembly, episode = trained(VECTORS, encoder="features", method="majority")
    rows = np.concatenate([part.rows for part in episode.stages[0].train])
    most = np.bincount(VECTORS.y[rows]).argmax()
    outputs = assembly.deploy()(torch.randn(5, VECTORS.raw.take(np.arange(1)).shape[1]))
    assert (outputs.argmax(1) == most).all()
    test = episode.stages[0].test[0]
    assert record.stages[0]["test"][test.domain]["accuracy"] == pytest.approx((VECTORS.y[test.rows] == most).mean())


@pytest.mark.parametrize(
    ("data", "encoder", "labels"),
    [
        (VECTORS, "mlp", ["majority", "features + logistic", "erm"]),
        (NUMBERS, "mlp", ["majority", "features + logistic", "features + boosting", "erm"]),
        (TEXTS, "bilstm", ["majority", "tfidf + logistic", "erm"]),
        (IMAGES, "cnn", ["majority", "pixels + logistic", "erm"]),
        pytest.param(GRAPHS, "gin", ["majority", "wl + logistic", "erm"], marks=pytest.mark.graph),
    ],
)
def test_compare_begins_with_the_baselines(data, encoder, labels, tmp_path):
    options = {"steps": 2, "batch": 4, "seeds": 1, "device": "cpu", "out": tmp_path, "encoder": encoder}
    sizes = {"mlp": {"encoder.hidden": [4]}, "gin": {"encoder.layers": 1, "encoder.hidden": 8}}
    settings = {"plan.targets": "domain-0", **sizes.get(encoder, {})}
    done = compare(data, methods=["erm"], settings=settings, combinations=False, **options)
    assert list(dict.fromkeys(cell["method"] for cell in done.table())) == labels
    assert [record.spec["method"] for record in done.records] == [label.split()[-1] for label in labels]


def test_a_baseline_can_be_the_choice_and_the_model(tmp_path):
    options = {"steps": 1, "batch": 4, "seeds": 1, "device": "cpu", "out": tmp_path / "runs", "encoder": "bilstm"}
    done = compare(TEXTS, methods=["erm"], settings={"neck": "projection"}, combinations=False, **options)
    assert done.decision.label == "tfidf + logistic"
    assert re.match(r"\d+\.\d against \d+\.\d of erm, and no other method or combination is", done.decision.why)
    assert "no other method or combination is significantly better" in done.report.read_text(encoding="utf-8")
    saved = load_model(refit(done, tmp_path / "model", device="cpu"))
    assert saved.record.spec["encoder"] == "tfidf"
    predictions = saved.predict(TEXTS.raw)
    assert (predictions.values.argmax(1) == TEXTS.y).mean() > 0.8
    assert predictions.foreign is not None


def test_adapt_refits_on_all_domains():
    data = pd.DataFrame({"text": list(TEXTS.raw.take(np.arange(len(TEXTS)))), "y": TEXTS.y, "domain": TEXTS.domain})
    old, new = data[data.domain < 3], data[data.domain == 3]
    model = DomainClassifier("logistic", encoder="tfidf", device="cpu", keep_sample=10)
    model.fit(list(old.text), list(old.y), domains=list(old.domain))
    with pytest.raises(BadInput, match="all examples at once"):
        model.partial_fit(list(new.text), list(new.y), domains=list(new.domain))
    before = model.predict_proba(list(new.text))
    model.adapt(list(new.text), list(new.y), domain="3", terms=Terms(device="cpu", max_forgetting=100))
    assert model.record_.spec["method"] == "logistic"
    assert not np.allclose(before, model.predict_proba(list(new.text)))
    model.adapt(
        list(new.text), list(new.y), domain="4", terms=Terms(device="cpu", max_forgetting=100, method="replay", steps=2)
    )


def test_wrappers_and_other_heads_are_refused():
    with pytest.raises(BadInput, match="single step"):
        make_spec(VECTORS, method="swad(logistic)")
    with pytest.raises(BadInput, match="head=linear"):
        trained(VECTORS, encoder="features", head="dense")
    with pytest.raises(BadInput, match=r"encoder\.dimension=2"):
        trained(TEXTS, encoder="tfidf", **{"encoder.dimension": 1})
