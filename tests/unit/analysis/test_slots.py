"""Slots of classes: the rows looked at are the network's, shares of attention add up, and worked examples by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.analysis.class_views import CLOUD, ClassView
from holdfast.analysis.slots import nearest, shares, slot_attention, slot_diversity, slot_map
from holdfast.analysis.views import View, Views, collect_views
from holdfast.core.store import TensorStore
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.model import Model
from holdfast.run.settings import make_spec
from holdfast.run.train import train
from holdfast.run.workspace import Workspace

N, D, C = 400, 8, 12
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(N, D, generator=GENERATOR)
Y = torch.arange(N) % C
EXAMPLES = Examples(TensorStore(X), Y, ("a", "b", "t"))
A, B, T = Part("a", np.arange(0, 200)), Part("b", np.arange(200, 300)), Part("t", np.arange(300, N))


def model(**options) -> Model:
    torch.manual_seed(0)
    neck = HeterogeneousMemory(D, C, **{"real": 16, "slots": 3, "label_width": 4, "support": 8, **options})
    neck.write(torch.randn(10, D), torch.randint(C, (10,)))
    neck.set_support(torch.randn(8, D + 4))
    return Model(nn.Linear(D, D), neck, nn.Linear(neck.width, C))


def look(net: Model, seed: int = 0) -> Views:
    return collect_views(net, EXAMPLES, [A, B], [T], seed=seed)


def test_the_batch_is_sorted_by_class_and_seen_as_one():
    net = model().eval()
    seen = look(net).classes
    assert seen is not None
    assert seen.labels.tolist() == [c for c in range(10) for _ in range(10)]  # ten of each of the first ten
    assert seen.attention is not None
    assert seen.attention.shape == (100, 100 + 36)
    np.testing.assert_allclose(seen.attention.sum(axis=1), 1, atol=1e-5)
    assert seen.recalled_labels.tolist() == [c for c in range(3) for _ in range(min(CLOUD, 25))]
    with torch.no_grad():
        known = net.neck.read_queue(net.backbone(X[:300]))[:, :D].numpy()
    for row, label in zip(seen.recalled, seen.recalled_labels, strict=True):  # rows of its class, not of the target
        apart = np.abs(known - row).max(axis=1)
        assert apart.min() < 1e-5
        assert int(Y[apart.argmin()]) == label


def test_the_network_is_left_as_it_was_and_rows_are_drawn_by_seed():
    net = model().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    views = [look(net, seed) for seed in (0, 0, 1)]
    assert net.training
    assert net.neck.context == "support"
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    first, again, other = (each.classes.attention for each in views)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("options", "has"),
    [({}, (1, 1, 1)), ({"real": 0}, (1, 1, 1)), ({"slots": 0}, (0, 1, 0)), ({"slots": 0, "across": False}, (0, 0, 0)),
     ({"slots": 1}, (1, 1, 0))],
)  # fmt: skip
def test_what_a_network_lacks_is_none(options, has):
    views = look(model(**options))
    found = slot_map(views, seed=0), slot_attention(views, seed=0), slot_diversity(views, seed=0)
    assert tuple(int(each is not None) for each in found) == has
    if found[1] is not None:
        assert (found[1]["mass"]["real"] is None) == (options.get("real") == 0)


def test_other_networks_have_nothing_to_say():
    plain = Views((View("a", np.ones((2, 3)), np.ones((2, 3))),), ())
    assert slot_map(plain, seed=0) is slot_attention(plain, seed=0) is slot_diversity(plain, seed=0) is None


def test_attention_by_class_beside_an_even_one():
    found = slot_attention(look(model()), seed=0)
    assert found is not None
    assert found["rows"] == [10] * 10
    assert found["slots"] == [3] * 10  # of the classes that are shown; the slots of two more are in the shares
    assert np.shape(found["map"]) == (100, 130)
    for line in (*found["shares"].values(), found["mean"], found["even"]):
        assert sum(line) == pytest.approx(1, abs=3e-4)
    even = [1 / 136, 9 / 136, 90 / 136, 3 / 136, 33 / 136]
    assert found["even"] == pytest.approx(even, abs=1e-4)
    itself, others, queue, slots = found["mass"]["across"]
    assert queue == 0
    assert (itself, others, slots) == pytest.approx(
        (found["mean"][0], sum(found["mean"][1:3]), sum(found["mean"][3:])), abs=3e-4
    )
    assert found["mass"]["real"][0] + found["mass"]["real"][2] == pytest.approx(1, abs=1e-3)
    json.dumps(found, allow_nan=False)


def test_shares_by_hand():
    attention = np.array([[0.1, 0.2, 0.3, 0.15, 0.25], [0.5, 0.0, 0.1, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    found = shares(attention, np.array([0, 0, 1]), np.array([0, 1]))
    np.testing.assert_allclose(
        found, [[0.1, 0.2, 0.3, 0.15, 0.25], [0.0, 0.5, 0.1, 0.4, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]], atol=1e-12
    )


def test_nearest_slots_by_hand():
    apart = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
    assert nearest(apart, np.array([0, 0, 1, 1])) == (1.0, pytest.approx(1 / 3))
    assert nearest(apart, np.array([0, 1, 0, 1])) == (0.0, pytest.approx(1 / 3))
    assert nearest(np.zeros((4, 2)), np.array([0, 0, 1, 1]))[0] == pytest.approx(1 / 3)  # all the same: chance


@pytest.mark.parametrize("how", ["pca", "tsne"])
def test_the_map_has_slots_of_all_classes_then_three_beside_their_rows(how):
    found = slot_map(look(model()), seed=0, how=how)
    assert found is not None
    assert found["targets"] == ["t"]
    assert [(g["class"], g["kind"], len(g["x"])) for g in found["alone"]["groups"]] == [
        (str(c), "slots", 3) for c in range(C)
    ]
    assert [(g["class"], g["kind"], len(g["y"])) for g in found["beside"]["groups"]] == [
        (str(c), kind, count) for c in range(3) for kind, count in (("slots", 3), ("rows", 25))
    ]
    assert (found["alone"]["variance"] is None) == (how == "tsne")
    every = [v for g in found["beside"]["groups"] for v in (*g["x"], *g["y"])]
    assert (min(every), max(every)) == (0.0, 1.0)
    json.dumps(found, allow_nan=False)


def test_slots_that_are_all_alike_are_drawn_and_told():
    views = look(model(start="zeros"))
    assert slot_map(views, seed=0, how="tsne") is not None
    found = slot_diversity(views, seed=0)
    assert found is not None
    assert found["mean"] == 1.0
    assert set(found["classes"].values()) == {1.0}
    drawn = slot_diversity(look(model(slots=8)), seed=0)
    assert drawn is not None
    assert abs(drawn["mean"]) < drawn["scatter"] == pytest.approx(D**-0.5, abs=1e-4)


def test_classes_are_called_by_their_names():
    given = look(model()).classes
    assert given is not None
    named = ClassView(**{**vars(given), "classes": tuple(f"kind {i}" for i in range(C))})
    found = slot_diversity(Views((), (), named), seed=0)
    assert found is not None
    assert list(found["classes"])[:2] == ["kind 0", "kind 1"]


def test_a_run_keeps_them_and_zeros_stay_one_slot():
    """The published start: m slots of a class that begin alike stay alike, however long they learn."""
    data = world("vector", "rotation", domains=3, size=60, classes=3, seed=0)
    workspace, found = Workspace(data), {}
    for start in ("zeros", "normal"):
        settings = {"encoder.hidden": [8], "neck.real": 16, "neck.slots": 4, "neck.start": start, "neck.support": 16}
        spec = make_spec(data, method="hma", steps=20, every=10, batch=8, settings=settings)
        record, _ = train(spec, workspace.episodes(spec)[0], workspace, analyse=("slot-diversity", "slot-attention"))
        found[start] = record.analysis
    assert found["zeros"]["slot-diversity"]["mean"] == pytest.approx(1, abs=1e-3)
    assert found["normal"]["slot-diversity"]["mean"] < 0.9
    assert found["zeros"]["slot-attention"]["classes"] == list(data.classes)
