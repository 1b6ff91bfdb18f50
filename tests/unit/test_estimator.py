import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import accuracy_score

import holdfast
from holdfast import BadInput, DomainClassifier
from holdfast.data.synthetic import world
from holdfast.nn.backbones.graph import geometric
from holdfast.run.workspace import Workspace
from tests.graphs import rings_and_stars
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
    made = small().fit(X, y, domains=d)
    assert made.score(X, y) > 0.9
    p = made.predict_proba(X[:5])
    assert p.shape == (5, 2)
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-9)
    again = DomainClassifier.from_pretrained(made.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(X), made.predict_proba(X))
    assert list(again.classes_) == list(made.classes_)


def test_it_is_a_scikit_learn_estimator(vectors):
    X, y, d = vectors
    made = small(seed=3)
    other = clone(made)
    assert other.get_params()["seed"] == 3
    a, b = (m.fit(X, y, domains=d).predict_proba(X) for m in (made, other))
    np.testing.assert_array_equal(a, b)


def test_texts_and_pairs_are_taken_as_they_come():
    texts = [f"{w} thing" for w in ("good", "bad") for _ in range(12)]
    y, d = [1] * 12 + [0] * 12, ["a", "b"] * 12
    options = {"encoder": "bilstm", "steps": 40, "batch": 8, "lr": 0.02}
    made = DomainClassifier(**options).fit(texts, y, domains=d)
    assert made.predict(["good thing", "bad thing"]).tolist() == [1, 0]
    pairs = [(t, "is it") for t in texts]
    assert DomainClassifier(**options).fit(pairs, y, domains=d).score(pairs, y) > 0.9


def test_labels_come_back_as_they_were_given_and_it_can_be_pickled_and_saved_again(vectors, tmp_path):
    X, _, d = vectors
    y = (X[:, 0] > 0).astype(int)
    made = small().fit(pd.DataFrame(X), pd.Series(y), domains=pd.Series(d, index=range(7, 7 + len(d))))
    assert made.predict(X).dtype == y.dtype
    assert accuracy_score(y, made.predict(X)) > 0.9
    copy = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(copy.predict_proba(X), made.predict_proba(X))
    again = DomainClassifier.from_pretrained(made.save_pretrained(tmp_path / "a"))
    third = DomainClassifier.from_pretrained(again.save_pretrained(tmp_path / "b"))
    np.testing.assert_array_equal(third.predict_proba(X), made.predict_proba(X))
    assert third.predict_proba(X[:0]).shape == (0, 2)


def test_odd_texts_are_named(vectors):
    with pytest.raises(BadInput, match="example 2 is no text but None"):
        DomainClassifier(encoder="bilstm").fit(["a", None], [0, 1], domains=["x", "y"])
    with pytest.raises(BadInput, match="the label of example 2 is missing"):
        DomainClassifier(encoder="bilstm").fit(["a", "b"], [0, float("nan")], domains=["x", "y"])
    with pytest.raises(BadInput, match="all of one kind"):
        DomainClassifier().fit([{"a": 1}], [0], domains=["x"])


def test_bad_calls_say_what_is_wrong(vectors):
    X, y, d = vectors
    with pytest.raises(BadInput, match="give one of each"):
        small().fit(X, y[:-1], domains=d)
    with pytest.raises(BadInput, match="not fitted yet"):
        small().predict(X)
    broken = X.copy()
    broken[3, 1] = np.nan
    with pytest.raises(BadInput, match="row 4, feature 2"):
        small().fit(broken, y, domains=d)
    with pytest.raises(BadInput, match="single label"):
        small().fit(X, ["same"] * len(y), domains=d)


def test_a_neck_that_does_not_fit_is_told_before_images_are_prepared(monkeypatch):
    images = world("image", "none", domains=2, size=8, classes=2, seed=0)
    monkeypatch.setattr(Workspace, "store", lambda *_: pytest.fail("images were prepared"))
    made = DomainClassifier("experts+erm", encoder="vit-tiny", tune="full", steps=1, settings={"neck.at": [99]})
    with pytest.raises(BadInput, match=r"from 0 to 11, .* not \[99\]"):
        made.fit_dataset(images)


def test_compare_from_python(tmp_path):
    data = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)
    done = holdfast.compare(data, methods=["erm"], seeds=[4, 7], steps=20, out=tmp_path)
    assert {cell["target"] for cell in done.table()} == {*data.domains, "average", "worst"}
    assert {r.spec["seed"] for r in done.records} == {4, 7}
    assert done.report.exists()


@pytest.mark.graph
def test_graphs_are_learnt_saved_and_predicted(tmp_path):
    data = world("graph", "size", domains=3, size=40, classes=2, seed=0)
    X = data.raw.take(np.arange(len(data)))
    small = {"encoder.layers": 2, "encoder.hidden": 16, "encoder.dropout": 0.0}
    made = DomainClassifier("coral", encoder="gin-virtual", steps=60, batch=16, lr=0.01, settings=small)
    made.fit(X, data.y, domains=data.domain)
    assert made.score(X, data.y) > 0.9
    again = DomainClassifier.from_pretrained(made.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(X[:9]), made.predict_proba(X[:9]))
    np.testing.assert_allclose(again.predict_proba(X[:9])[:4], again.predict_proba(X[:4]), atol=1e-6)
    with pytest.raises(BadInput, match="takes graphs but the data holds texts"):
        again.predict(["a text"])
    with pytest.raises(BadInput, match="each must be a Graphs of one graph"):
        made.fit([X[0], "a text"], [0, 1], domains=[0, 1])


@pytest.mark.graph
def test_objects_of_torch_geometric_are_learnt_and_predicted(tmp_path):
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
    made = DomainClassifier(encoder="gin", steps=60, batch=16, lr=0.01, settings=settings).fit(graphs, y, domains=d)
    assert made.score(graphs, y) > 0.9
    assert made.predict(graphs).dtype == y.dtype
    wanted = made.predict_proba(graphs)
    assert wanted.shape == (40, 2)
    np.testing.assert_array_equal(made.predict_proba(Shapes(graphs)), wanted)
    np.testing.assert_array_equal(made.predict_proba(Batch.from_data_list(graphs).to_data_list()), wanted)
    again = DomainClassifier.from_pretrained(made.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(graphs), wanted)
    with pytest.raises(BadInput, match="example 2 is a str: examples are graphs"):
        made.fit([graphs[0], "a text"], [0, 1])
    with pytest.raises(BadInput, match=r"example 2 is no text but Data\(.*\): examples are of one kind"):
        made.fit(["a text", graphs[0]], [0, 1])
    with pytest.raises(BadInput, match="not one graph or batch"):
        made.predict(Batch.from_data_list(graphs))


def test_a_model_with_a_general_memory_predicts_from_its_folder_alone(tmp_path):
    domain, general = tiny_masked(tmp_path / "domain"), tiny_bert(tmp_path / "general")
    texts = ["good good film", "the bad phone", "very good", "bad food", "a good phone", "bad bad bad"] * 4
    settings = {"encoder.domain": str(domain), "encoder.general": str(general), "encoder.length": 12}
    made = DomainClassifier(encoder="gmap", steps=12, batch=4, lr=1e-3, settings=settings)
    made.fit(texts, ["+", "-"] * 12, domains=["a"] * 12 + ["b"] * 12)
    wanted = made.predict_proba(texts)
    folder = made.save_pretrained(tmp_path / "model")
    shutil.rmtree(domain)
    shutil.rmtree(general)
    again = DomainClassifier.from_pretrained(folder)
    assert np.array_equal(again.predict_proba(texts), wanted)
    third = DomainClassifier.from_pretrained(again.save_pretrained(tmp_path / "third"))
    assert np.array_equal(third.predict_proba(texts), wanted)
