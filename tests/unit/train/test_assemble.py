"""Frozen features are cached, shared and equal to computed ones; encoders never depend on the target domain."""

import re

import numpy as np
import pytest
import torch

from holdfast.core.checkpoint import state_digest
from holdfast.core.errors import BadInput
from holdfast.data.augment import augment, drop_node
from holdfast.data.cache import uncached_rows
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts, Vectors
from holdfast.data.synthetic import world
from holdfast.train import workspace
from holdfast.train.assemble import assemble
from holdfast.train.evaluate import outputs
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.tiny import tiny_bert


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return f"hf:{tiny_bert(tmp_path_factory.mktemp('bert'))}"


@pytest.fixture
def texts():
    return world("text", "vocabulary", domains=3, size=20, classes=2, seed=0)


def frozen(dataset, encoder, cache, **more):
    spec = make_spec(dataset, encoder=encoder, tune="frozen", steps=15, every=5, batch=4, **more)
    workspace = Workspace(dataset, cache=cache)
    record, assembly = train(spec, workspace.episodes(spec)[0], workspace)
    return record, assembly, workspace


def test_cached_and_uncached_runs_give_equal_logits(texts, bert, tmp_path):
    cached, first, _ = frozen(texts, bert, tmp_path)
    live, second, _ = frozen(texts, bert, None)
    rows = np.arange(len(texts))
    a, b = (outputs(assembly.method, assembly.examples, rows) for assembly in (first, second))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert cached.spec == live.spec
    deployed = first.deploy().eval()
    raw = first.encoder.prepare(texts.raw.take(rows)).take(torch.from_numpy(rows))
    torch.testing.assert_close(deployed(raw).detach(), b, rtol=1e-4, atol=1e-5)


def test_the_most_frequent_class_needs_no_features(texts, bert, tmp_path, monkeypatch):
    live, _, _ = frozen(texts, bert, None, method="majority")
    monkeypatch.setattr(Workspace, "frozen_features", None)  # any call raises
    cached, assembly, _ = frozen(texts, bert, tmp_path, method="majority")
    assert cached.stages == live.stages
    raw = assembly.encoder.prepare(texts.raw.take(np.arange(2))).take(torch.arange(2))
    predicted = assembly.deploy().eval()(raw)
    torch.testing.assert_close(predicted[0], predicted[1])


def test_the_most_frequent_class_fits_its_encoder_to_a_few_rows(tmp_path, monkeypatch):
    dataset, taken, take = world("text", "vocabulary", domains=3, size=700, classes=2, seed=0), [], Texts.take
    monkeypatch.setattr(Texts, "take", lambda self, rows, **more: taken.append(len(rows)) or take(self, rows, **more))
    frozen(dataset, "tfidf", tmp_path, method="majority")
    assert 0 < max(taken) < 600


def rows_to_encode(own, encoder):
    """Return the number of examples whose features the cache lacks."""
    return uncached_rows(own.dataset.raw, own._feature_groups(), key=workspace._feature_key(encoder), folder=own.cache)


def test_samples_and_the_final_model_share_cached_features(texts, bert, tmp_path):
    """A workspace of another command finds the features of the largest sample that was encoded."""
    data = world("text", "vocabulary", domains=3, size=1000, classes=2, seed=0)
    encoder = frozen(texts, bert, tmp_path)[1].encoder
    Workspace(data, cache=tmp_path).sampled(1000).frozen_features(encoder)
    other = Workspace(data, cache=tmp_path)
    assert rows_to_encode(other.sampled(1000), encoder) == 0
    assert rows_to_encode(other, encoder) == len(data) - 1000
    other.frozen_features(encoder)
    assert rows_to_encode(Workspace(data, cache=tmp_path), encoder) == 0


def test_features_are_computed_once_and_shared(texts, bert, tmp_path):
    frozen(texts, bert, tmp_path)
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "features").iterdir()}
    assert len(files) == 3  # one per domain
    frozen(texts, bert, tmp_path, seed=1)
    frozen(texts, bert, tmp_path, lr=0.01)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "features").iterdir()} == files
    frozen(texts, bert, tmp_path, settings={"encoder.pooling": "cls"})
    assert len(list((tmp_path / "features").iterdir())) == 6
    frozen(texts, bert, tmp_path, settings={"encoder.length": 9})
    assert len(list((tmp_path / "features").iterdir())) == 9


def test_changed_examples_are_recomputed(texts, bert, tmp_path):
    frozen(texts, bert, tmp_path)
    changed = [str(t) + " more" if i == 0 else t for i, t in enumerate(texts.raw.take(np.arange(len(texts))))]
    other = Dataset("t", Texts.of(changed), texts.y, texts.classes, texts.domain, texts.domains)
    frozen(other, bert, tmp_path)
    assert len(list((tmp_path / "features").iterdir())) == 4  # only the changed domain


def test_cache_key_depends_on_every_weight(texts, bert):
    spec = make_spec(texts, encoder=bert)
    workspace = Workspace(texts)
    encoder = assemble(spec, workspace.episodes(spec)[0], workspace).encoder
    before = state_digest(encoder.state_dict())
    assert state_digest(encoder.state_dict()) == before
    with torch.no_grad():
        list(encoder.parameters())[-1].view(-1)[0] += 1e-3
    assert state_digest(encoder.state_dict()) != before


def test_unwritable_cache_does_not_stop_training(texts, bert, tmp_path, caplog):
    before, _, _ = frozen(texts, bert, tmp_path / "cache")
    (tmp_path / "file").write_text("")
    after, _, _ = frozen(texts, bert, tmp_path / "file")
    assert re.search(r"file/features.*HOLDFAST_CACHE", caplog.text)
    assert before.stages == after.stages


def test_tuning_mode_decides_which_weights_change(texts, bert, tmp_path):
    for tune, cache in (("frozen", None), ("last:1", tmp_path), ("full", tmp_path)):
        spec = make_spec(texts, encoder=bert, tune=tune, steps=4, every=2, batch=4)
        workspace = Workspace(texts, cache=cache)
        episode = workspace.episodes(spec)[0]
        before = {k: v.clone() for k, v in assemble(spec, episode, workspace).encoder.state_dict().items()}
        _, assembly = train(spec, episode, workspace)
        after = assembly.deploy().backbone.state_dict()
        moved = {k for k in before if not torch.equal(before[k], after[k])}
        assert bool(moved) == (tune != "frozen")
        if tune == "last:1":
            assert all("layer.1." in k or "layer.2." in k for k in moved), moved


def test_scale_and_vocabulary_come_from_training_rows_only():
    dataset = world("vector", "rotation", domains=3, size=30, classes=2, seed=0)
    target = dataset.rows_of(dataset.domains[0])
    changed = dataset.raw.take(np.arange(len(dataset))).numpy().copy()
    changed[target] = 1e6
    other = Dataset("x", Vectors(changed), dataset.y, dataset.classes, dataset.domain, dataset.domains)
    encoders = []
    for data in (dataset, other):
        spec = make_spec(data, steps=2)
        workspace = Workspace(data)
        encoders.append(assemble(spec, workspace.episodes(spec)[0], workspace).encoder.state_dict())
    for name, value in encoders[0].items():
        assert torch.equal(value, encoders[1][name]), name
    texts = Dataset(
        "w",
        Texts.of([f"{d}{i % 3} common common" for d in "abc" for i in range(6)]),
        np.arange(18) % 2,
        ("n", "y"),
        np.arange(18) // 6,
        ("a", "b", "c"),
    )
    spec = make_spec(texts, encoder="bilstm", steps=2)
    workspace = Workspace(texts)
    words = assemble(spec, workspace.episodes(spec)[0], workspace).encoder.settings["words"]
    assert not [w for w in words if w.startswith("a")]
    assert "common" in words


def transform(kind, **settings):
    dataset = world(kind, "none", domains=2, size=6, classes=2, seed=0)
    spec = make_spec(dataset, encoder={"image": "cnn", "graph": "gin", "vector": "mlp"}[kind], settings=settings)
    workspace = Workspace(dataset)
    return assemble(spec, workspace.episodes(spec)[0], workspace).transform


def test_augmentation_must_fit_the_examples():
    assert transform("image") is None
    assert transform("image", augment=True) is transform("image", augment="domainbed") is augment
    for name, message in (("drop-edge", "graph.*image"), ("drop", "'drop'")):
        with pytest.raises(BadInput, match=message):
            transform("image", augment=name)
    with pytest.raises(BadInput, match="vector"):
        transform("vector", augment=True)
    with pytest.raises(BadInput, match=r"augment.*frozen"):
        transform("image", augment=True, tune="frozen")
    with pytest.raises(BadInput, match=r"augment.*3"):
        transform("image", augment=3)


@pytest.mark.graph
def test_augmentations_of_graphs_have_no_default():
    assert transform("graph", augment="drop-node") is drop_node
    with pytest.raises(BadInput, match=r"graph.*drop-edge, drop-node, subgraph"):
        transform("graph", augment=True)
