"""What is said of a general memory: means against the tape row by row, and a memory whose effect is known."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.analysis.general_use import depth, general_use
from holdfast.analysis.general_views import Effect, Recalled, view_effects, view_general
from holdfast.analysis.views import View, Views, collect_views
from holdfast.core.inputs import Question
from holdfast.core.tape import tape
from holdfast.data.batches import Examples, prepare
from holdfast.data.raw import Texts
from holdfast.data.readers.questions import Questions
from holdfast.data.readers.tags import Sentences
from holdfast.data.splits import Part
from holdfast.nn.backbones.gmap import GMap
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.heads import Linear
from holdfast.nn.memory.general import memory_hidden
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from tests import tiny
from tests.annotated import asked, tagged

SAID = [" ".join(["the", "good", "bad", "film", "was"][: 1 + i % 5]) for i in range(10)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("two")
    return {"domain": str(tiny.tiny_masked(place / "domain")), "general": str(tiny.tiny_bert(place / "general"))}


def built(encoder) -> tuple[Model, Examples]:
    store = prepare(Texts.of(SAID), encoder.prepare, size=None)
    model = Model(encoder, NoNeck(32), Linear(32, 2)).eval()
    return model, Examples(store, torch.zeros(10, dtype=torch.long), ("a", "b"))


def gmap(folders, **options) -> tuple[Model, Examples]:
    torch.manual_seed(0)
    return built(GMap.build(lambda: SAID, **folders, length=12, **options))


def test_means_are_those_of_the_tape_without_padding(folders):
    model, examples = gmap(folders, strategy="gated", layers=[1, 3])
    rows = np.array([4, 0, 7])
    found = view_general(model, examples, rows)
    assert found is not None
    assert (found.layers, found.sources) == ((1, 3), ((1, 2, 3), (1, 2, 3)))
    for i, row in enumerate(rows):
        with tape() as side, torch.no_grad():
            model.encode(examples.inputs(torch.tensor([row])))  # alone: nothing is padded
        for layer in range(2):
            mass, gate = found.mass[i, layer], found.gates[layer]
            np.testing.assert_allclose(mass, side["general/mass"][layer][0].mean(-1), rtol=1e-4)
            np.testing.assert_allclose(gate[i], side["general/gate"][layer][0].mean(0), rtol=1e-4)
    assert (found.moved > 0.01).all()


def test_layers_with_one_source_have_no_gate_and_other_attentions_cannot_hide(folders):
    model, examples = gmap(folders, attention="gate", share=1.0)
    found = view_general(model, examples, np.arange(3))
    assert found is not None
    assert found.sources == ((1,), (2, 3))
    assert found.gates[0] is None
    assert found.gates[1].shape == (3, 2)
    np.testing.assert_allclose(found.mass, 1 / (1 + np.exp(-1)), rtol=1e-5)
    assert found.moved is None
    model, examples = gmap(folders, attention="cross")
    assert (view_general(model, examples, np.arange(3)).mass == 1).all()


def test_a_memory_that_tells_nothing_new_moves_nothing(folders):
    """The states after layer 1 are what layer 2 takes in, so half of the attention goes there and changes nothing."""
    model, examples = gmap(folders, memory="own", strategy="single", layers=[2], source=1)
    found = view_general(model, examples, np.arange(10))
    assert found is not None
    np.testing.assert_allclose(found.mass, 0.5, atol=1e-4)
    np.testing.assert_allclose(found.moved, 0, atol=1e-4)


def test_the_score_of_test_rows_with_the_memory_and_with_it_hidden(folders):
    model, examples = gmap(folders)
    asked = []

    def scored(part: Part) -> float:
        asked.append((part.domain, part.rows.tolist()))
        with torch.no_grad():
            return float(model(examples.inputs(torch.from_numpy(part.rows))).sum())

    targets = [Part("b", np.arange(3)), Part("c", np.arange(5, 7)), Part("b", np.arange(3, 5))]
    found = view_effects(model, targets, scored)
    assert asked == [("b", [0, 1, 2, 3, 4])] * 2 + [("c", [5, 6])] * 2
    plain = built(TextEncoder.build(list, name=folders["domain"], length=12))[0]
    plain.head = model.head
    for domain, rows in (("b", torch.arange(5)), ("c", torch.arange(5, 7))):
        with torch.no_grad():
            as_read, without = (float(each(examples.inputs(rows)).sum()) for each in (model, plain))
        assert found[domain].read == pytest.approx(as_read, rel=1e-4)
        assert found[domain].hidden == pytest.approx(without, rel=1e-4, abs=1e-4)
        assert abs(as_read - without) > 0.01
    for other in (gmap(folders, attention="cross")[0], plain):
        assert view_effects(other, targets, scored) == {}
    assert view_effects(model, targets, None) == {}


PARTS = ("context", "question", "answers", "answer_start")


def raw_of(task: str):
    if task == "tag":
        words = [words for words, _ in tagged("home", 8)]
        return Sentences(words, [[0] * len(each) for each in words]), ("O", "B-THING", "I-THING")
    rows = [[row[part] for part in PARTS] for row in asked("home", 8)]
    return Questions([Question(c, q, tuple(a), tuple(s)) for c, q, a, s in rows]), ("start", "end")


@pytest.mark.parametrize("task", ["tag", "span"])
def test_tags_and_answers_are_looked_at_by_places_and_windows(task, folders):
    torch.manual_seed(0)
    encoder = GMap.build(list, **folders, length=24)
    raw, classes = raw_of(task)
    made = catalog.build("tasks", task, options={}).prepare(encoder, raw, classes)
    model = Model(encoder, NoNeck(32), Linear(32, len(classes))).eval()
    examples = Examples(made.store, made.y, ("a", "b"), starts=made.starts)
    parts = [Part("a", np.arange(4))], [Part("b", np.arange(4, 8))]

    def scored(part: Part) -> float:
        rows = examples.rows_of(part)
        kept = examples.map(partial(made.task.evaluate, model), rows.numpy(), targets=True)
        return made.task.scores(kept, examples.targets(rows), ["nll"])["nll"]

    views = collect_views(model, examples, *parts, seed=0, scored=scored)
    rows = examples.rows_of(parts[0][0])
    assert (len(rows) > 4) == (task == "span")  # a text is in several windows
    found = views.sources[0].general
    assert found.mass.shape == (len(rows), 2, 2)
    for i, row in enumerate(rows):
        x = examples.inputs(row[None])  # alone: nothing is padded, neither tokens nor places
        with torch.no_grad(), tape() as side:
            z = model.encode(x)[0]
        with torch.no_grad(), memory_hidden():
            plain = model.encode(x)[0]
        np.testing.assert_allclose(found.mass[i, 0], side["general/mass"][0][0].mean(-1), rtol=1e-4)
        np.testing.assert_allclose(found.gates[1][i], side["general/gate"][0][0].mean(0), rtol=1e-4)
        each = (z - plain).norm(dim=-1) / plain.norm(dim=-1)
        assert found.moved[i] == pytest.approx(float(each.mean()), rel=1e-3)
        np.testing.assert_allclose(views.sources[0].features[i], z.mean(0), rtol=1e-3, atol=1e-5)
    told = general_use(views, seed=0)
    assert told["targets"]["b"]["scores"]["read"] == pytest.approx(scored(parts[1][0]))
    assert told["targets"]["b"]["scores"]["hidden"] != told["targets"]["b"]["scores"]["read"]
    json.dumps(told, allow_nan=False)


def test_other_networks_say_nothing(folders):
    model, examples = built(TextEncoder.build(list, name=folders["domain"], length=12))
    assert view_general(model, examples, np.arange(3)) is None
    parts = [Part("a", np.arange(5))], [Part("b", np.arange(5, 10))]
    assert general_use(collect_views(model, examples, *parts, seed=0), seed=0) is None
    model, examples = gmap(folders)
    told = general_use(collect_views(model, examples, *parts, seed=0), seed=0)
    assert told is not None
    assert (list(told["sources"]), list(told["targets"]), told["layers"]) == (["a"], ["b"], [2, 3])
    assert told["targets"]["b"]["scores"] is None  # nobody asked for them
    json.dumps(told, allow_nan=False)


def test_what_a_record_gets():
    mass = np.array([[[0.2, 0.4]], [[0.4, 0.8]]])  # two rows, one layer, two heads
    gate = np.array([[0.5, 0.5], [0.0, 1.0]])
    seen = Recalled((6,), mass, ((1, 3),), (gate,), np.array([0.1, 0.3]))
    z = np.zeros((2, 2))
    views = Views((View("a", z, z, general=seen),), (View("b", z, z, general=seen),), effects={"b": Effect(0.9, None)})
    one = {"mass": [[0.3, 0.6]], "gates": [[0.25, 0.75]], "depths": [2.5], "moved": 0.2}
    assert general_use(views, seed=0) == {
        "layers": [6],
        "read": [[1, 3]],
        "sources": {"a": one},
        "targets": {"b": {**one, "scores": {"read": 0.9, "hidden": None}}},
    }
    assert depth(np.full((4, 6), 1 / 6), (7, 8, 9, 10, 11, 12)) == pytest.approx(9.5)
