"""Prediction-time memories: no effect at weight zero, no help from shuffled labels, changes take effect at once."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.estimator import DomainClassifier
from holdfast.folders.memory import change_memory
from holdfast.nn.memory.recall import KNN, T3A
from holdfast.prediction.export import export
from holdfast.serve.service import Service
from holdfast.train.resolve import Request, resolve
from holdfast.train.run import train
from holdfast.train.workspace import Workspace

DATA = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
QUICK = {"encoder.hidden": [8], "plan.targets": ["domain-0"]}


def run(data=DATA, method="erm", steps=5, **settings):
    """Return the record and the deployed network of one run."""
    workspace = Workspace(data, cache=None)
    (job,) = resolve(Request(methods=[method], steps=steps, settings={**QUICK, **settings}), workspace)
    record, assembly = train(job.spec, job.episode_in(workspace), workspace)
    return record, assembly.deploy()


def shuffled(data, seed=0):
    """Return the data with the labels of every row permuted."""
    return replace(data, y=np.random.default_rng(seed).permutation(data.y))


@pytest.mark.parametrize("kind", ["knn", "t3a"])
def test_weight_zero_reproduces_the_model_exactly(kind):
    plain, _ = run()
    record, model = run(predict=kind, **{"predict.weight": 0})
    assert record.stages[0]["test"] == plain.stages[0]["test"]
    assert record.stages[0]["right"] == plain.stages[0]["right"]
    assert record.stages[0]["recall"]["changed"] == 0
    x = torch.randn(4, DATA.raw.take(np.arange(1)).shape[1])
    assert torch.equal(model(x), model.head(model.features(x)))
    assert "predict" not in plain.spec  # ids of earlier records stay valid


def test_memory_helps_a_weak_network_and_shuffled_labels_do_not():
    """Null control: with labels that do not depend on the input, the memory gets (almost) no weight."""
    plain, _ = run()
    record, _ = run(predict="knn")
    chosen = record.stages[0]["recall"]
    assert chosen["weight"] > 0.5
    assert chosen["nll_with_memory"] < 0.7 * chosen["nll"]
    assert record.stages[0]["test"]["domain-0"]["accuracy"] > plain.stages[0]["test"]["domain-0"]["accuracy"] + 0.1
    null, _ = run(shuffled(world("vector", "rotation", domains=3, size=400, classes=2, seed=0)), predict="knn")
    chosen = null.stages[0]["recall"]
    assert chosen["weight"] <= 0.2
    assert chosen["nll_with_memory"] > 0.98 * chosen["nll"]


@pytest.mark.parametrize("method", ["mil", "hma", "projection+erm", "moving-average(coral)", "logistic"])
def test_memory_combines_with_methods_and_necks(method):
    small = {"neck.slots": 16, "neck.key_width": 4} if method == "mil" else {}
    record, model = run(method=method, predict="knn", **small)
    assert record.stages[0]["recall"]["examples"] == len(model.recall) == 96


def test_t3a_uses_inputs_of_the_target_but_no_labels():
    """Other labels of the target change neither predictions nor settings; a deployed model has observed nothing."""
    target = DATA.rows_of("domain-0")
    y = DATA.y.copy()
    y[target] = 1 - y[target]
    (a, model), (b, _) = (run(data, predict="t3a") for data in (DATA, replace(DATA, y=y)))
    assert a.stages[0]["recall"] == b.stages[0]["recall"]
    accuracy = [record.stages[0]["test"]["domain-0"]["accuracy"] for record in (a, b)]
    assert sum(accuracy) == pytest.approx(1)
    assert len(model.recall) == 0


def test_t3a_prototypes_are_means_of_the_most_certain_examples():
    recall = T3A(size=1, temperature=1.0, weight=0.5)
    recall.centre, recall.start, recall.classes = torch.zeros(2), torch.eye(2), 2
    recall.chosen = {"size": 1, "temperature": 1.0, "weight": 0.5}
    recall.forget()
    z = torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.8, 0.6]])
    recall.observe(z, torch.tensor([[0.1, 0.0], [5.0, 0.0], [9.0, 0.0]]))
    assert torch.allclose(recall.prototypes()[0], torch.nn.functional.normalize(torch.tensor([1.8, 0.6]), dim=0))
    assert torch.equal(recall.prototypes()[1], torch.tensor([0.0, 1.0]))


X = np.random.default_rng(0).normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)
NEW = np.asarray([[9.0, 9.0, 9.0], [9.0, 9.1, 9.0]])  # far from all others


@pytest.fixture
def folder(tmp_path):
    settings = {"encoder.hidden": [8], "predict": "knn", "predict.k": 1, "predict.weight": 0.9}
    classifier = DomainClassifier(encoder="mlp", steps=5, batch=8, device="cpu", settings=settings).fit(X, Y)
    return classifier.save_pretrained(tmp_path / "model")


def test_additions_and_deletions_take_effect_at_once(folder, tmp_path):
    classifier = DomainClassifier.from_pretrained(folder, device="cpu")
    before = classifier.predict_proba(NEW)
    classifier.add_examples(NEW, [0, 0])
    assert (classifier.predict(NEW) == "0").all()
    assert classifier.delete_examples(NEW) == 2
    assert np.array_equal(classifier.predict_proba(NEW), before)
    stored = len(classifier._model().model.recall)
    assert classifier.delete_examples(X) == stored  # training examples can be deleted too
    with pytest.raises(BadInput, match="fit it with --set predict=knn"):
        DomainClassifier(encoder="mlp", steps=1).fit(X, Y).delete_examples(X)


def test_folder_changes_without_training_and_a_running_server_follows(folder, tmp_path):
    assert json.loads((folder / "config.json").read_text())["format"] == 2
    service, new = Service(folder, device="cpu"), tmp_path / "new.csv"
    requests = [service.parser.parse(json.dumps({"examples": NEW.tolist()}).encode())]
    for label in (0, 1):
        pd.DataFrame({**{f"f{i}": NEW[:, i] for i in range(3)}, "label": [label] * 2}).to_csv(new, index=False)
        assert change_memory(folder, add=new, device="cpu").added == 2
        assert [answer["label"] for answer in service.answer(requests)] == [str(label)] * 2
        assert change_memory(folder, delete=new, device="cpu").deleted == 2
    assert export(folder, tmp_path / "model.pt2", format="torch").difference < 1e-5


def test_invalid_settings_raise():
    for settings, message in (({"k": 0}, "`k` must be at least 1"), ({"weight": 1.0}, "below 1")):
        with pytest.raises(BadInput, match=message):
            KNN(**settings)
    with pytest.raises(BadInput, match=r"unknown prediction 'kmn'.*knn"):
        run(predict="kmn")
