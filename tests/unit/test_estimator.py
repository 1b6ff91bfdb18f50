"""DomainClassifier on all kinds of examples, from Python."""

import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score

from holdfast import BadInput, DomainClassifier
from holdfast.data.synthetic import world
from holdfast.train.workspace import Workspace
from tests.graphs import geometric, rings_and_stars
from tests.tiny import tiny_bert, tiny_masked


@pytest.fixture(scope="module")
def vectors():
    data = world("vector", "none", domains=3, size=60, classes=2, seed=0)
    X = data.raw.take(np.arange(len(data))).numpy()
    return X, np.asarray(data.classes)[data.y], np.asarray(data.domains)[data.domain]


def small(**more):
    return DomainClassifier(steps=80, batch=16, settings={"encoder.hidden": [16]}, **more)


def test_fit_predict_score_save_load(vectors, tmp_path):
    X, y, d = vectors
    classifier = small().fit(X, y, domains=d)
    assert classifier.score(X, y) > 0.9
    p = classifier.predict_proba(X[:5])
    assert p.shape == (5, 2)
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-9)
    again = DomainClassifier.from_pretrained(classifier.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert list(again.classes_) == list(classifier.classes_)


def test_texts_and_pairs():
    texts = [f"{w} thing" for w in ("good", "bad") for _ in range(12)]
    y, d = [1] * 12 + [0] * 12, ["a", "b"] * 12
    options = {"encoder": "bilstm", "steps": 40, "batch": 8, "lr": 0.02}
    classifier = DomainClassifier(**options).fit(texts, y, domains=d)
    assert classifier.predict(["good thing", "bad thing"]).tolist() == [1, 0]
    pairs = [(t, "is it") for t in texts]
    assert DomainClassifier(**options).fit(pairs, y, domains=d).score(pairs, y) > 0.9


def test_label_types_pickling_and_saving_again(vectors, tmp_path):
    X, _, d = vectors
    y = (X[:, 0] > 0).astype(int)
    classifier = small().fit(pd.DataFrame(X), pd.Series(y), domains=pd.Series(d, index=range(7, 7 + len(d))))
    assert classifier.predict(X).dtype == y.dtype
    assert accuracy_score(y, classifier.predict(X)) > 0.9
    copy = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copy.predict_proba(X), classifier.predict_proba(X))
    again = DomainClassifier.from_pretrained(classifier.save_pretrained(tmp_path / "a"))
    third = DomainClassifier.from_pretrained(again.save_pretrained(tmp_path / "b"))
    np.testing.assert_array_equal(third.predict_proba(X), classifier.predict_proba(X))
    assert third.predict_proba(X[:0]).shape == (0, 2)


def test_invalid_examples_are_named(vectors):
    with pytest.raises(BadInput, match=r"example 2.*None"):
        DomainClassifier(encoder="bilstm").fit(["a", None], [0, 1], domains=["x", "y"])
    with pytest.raises(BadInput, match="label of example 2"):
        DomainClassifier(encoder="bilstm").fit(["a", "b"], [0, float("nan")], domains=["x", "y"])
    with pytest.raises(BadInput, match="dict"):
        DomainClassifier().fit([{"a": 1}], [0], domains=["x"])


def test_bad_calls_raise(vectors):
    X, y, d = vectors
    with pytest.raises(BadInput, match="180 examples, 179 labels"):
        small().fit(X, y[:-1], domains=d)
    with pytest.raises(BadInput, match="not fitted yet"):
        small().predict(X)
    broken = X.copy()
    broken[3, 1] = np.nan
    with pytest.raises(BadInput, match="row 4, feature 2"):
        small().fit(broken, y, domains=d)
    with pytest.raises(BadInput, match="single label"):
        small().fit(X, ["same"] * len(y), domains=d)


def test_unsuitable_neck_raises_before_images_are_prepared(monkeypatch):
    images = world("image", "none", domains=2, size=8, classes=2, seed=0)
    monkeypatch.setattr(Workspace, "store", lambda *_: pytest.fail("images were prepared"))
    classifier = DomainClassifier("experts+erm", encoder="vit-tiny", tune="full", steps=1, settings={"neck.at": [99]})
    with pytest.raises(BadInput, match=r"from 0 to 11.*\[99\]"):
        classifier.fit_dataset(images)


@pytest.mark.graph
def test_graphs(tmp_path):
    data = world("graph", "size", domains=3, size=40, classes=2, seed=0)
    X = data.raw.take(np.arange(len(data)))
    small = {"encoder.layers": 2, "encoder.hidden": 16, "encoder.dropout": 0.0}
    classifier = DomainClassifier("coral", encoder="gin-virtual", steps=60, batch=16, lr=0.01, settings=small)
    classifier.fit(X, data.y, domains=data.domain)
    assert classifier.score(X, data.y) > 0.9
    again = DomainClassifier.from_pretrained(classifier.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(X[:9]), classifier.predict_proba(X[:9]))
    np.testing.assert_allclose(again.predict_proba(X[:9])[:4], again.predict_proba(X[:4]), atol=1e-6)
    with pytest.raises(BadInput, match=r"graph.*text"):
        again.predict(["a text"])
    with pytest.raises(BadInput, match="example 2 is a str"):
        classifier.fit([X[0], "a text"], [0, 1], domains=[0, 1])


@pytest.mark.graph
def test_torch_geometric_data(tmp_path):
    geometric()  # the first import warns
    from torch_geometric.data import Batch, Data, InMemoryDataset

    class Shapes(InMemoryDataset):
        def __init__(self, graphs):
            super().__init__()
            self.data, self.slices = self.collate(graphs)

    graphs = []
    for v, edges, label in rings_and_stars(40):
        ends = torch.tensor([(*edge,) for pair in edges for edge in (pair, pair[::-1])]).T
        graphs.append(Data(edge_index=ends, num_nodes=v, y=torch.tensor([label])))
    y, d = np.asarray([int(graph.y) for graph in graphs]), ["small"] * 20 + ["large"] * 20
    settings = {"encoder.layers": 2, "encoder.hidden": 16, "encoder.dropout": 0.0}
    classifier = DomainClassifier(encoder="gin", steps=60, batch=16, lr=0.01, settings=settings).fit(
        graphs, y, domains=d
    )
    assert classifier.score(graphs, y) > 0.9
    assert classifier.predict(graphs).dtype == y.dtype
    expected = classifier.predict_proba(graphs)
    assert expected.shape == (40, 2)
    np.testing.assert_array_equal(classifier.predict_proba(Shapes(graphs)), expected)
    np.testing.assert_array_equal(classifier.predict_proba(Batch.from_data_list(graphs).to_data_list()), expected)
    again = DomainClassifier.from_pretrained(classifier.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(graphs), expected)
    with pytest.raises(BadInput, match="example 2 is a str"):
        classifier.fit([graphs[0], "a text"], [0, 1])
    with pytest.raises(BadInput, match=r"example 2 is Data\("):
        classifier.fit(["a text", graphs[0]], [0, 1])
    with pytest.raises(BadInput, match="one graph"):
        classifier.predict(Batch.from_data_list(graphs))


@pytest.mark.slow
def test_model_with_general_memory_needs_only_its_folder(tmp_path):
    domain, general = tiny_masked(tmp_path / "domain"), tiny_bert(tmp_path / "general")
    texts = ["good good film", "the bad phone", "very good", "bad food", "a good phone", "bad bad bad"] * 4
    settings = {"encoder.domain": str(domain), "encoder.general": str(general), "encoder.length": 12}
    classifier = DomainClassifier(encoder="gmap", steps=12, batch=4, lr=1e-3, settings=settings)
    classifier.fit(texts, ["+", "-"] * 12, domains=["a"] * 12 + ["b"] * 12)
    expected = classifier.predict_proba(texts)
    folder = classifier.save_pretrained(tmp_path / "model")
    shutil.rmtree(domain)
    shutil.rmtree(general)
    again = DomainClassifier.from_pretrained(folder)
    assert np.array_equal(again.predict_proba(texts), expected)
    third = DomainClassifier.from_pretrained(again.save_pretrained(tmp_path / "third"))
    assert np.array_equal(third.predict_proba(texts), expected)
