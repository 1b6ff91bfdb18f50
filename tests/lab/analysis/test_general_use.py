"""General memory: collected means against recorded values, a memory with known effect, and figures."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.analysis.views import Views, collect_views
from holdfast.core.inputs import Question, Sentence
from holdfast.core.tape import tape
from holdfast.data.batches import Examples, prepare
from holdfast.data.raw import Records, Texts
from holdfast.data.splits import Part
from holdfast.nn.backbones.gmap import GMap
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.heads import Linear
from holdfast.nn.memory.general import memory_hidden
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from lab.analysis.general_use import draw_panels, general_use, mean_depth, sections
from lab.analysis.general_views import Effect, GeneralView, view_effects, view_general, view_reads
from tests import tiny
from tests.annotated import question_rows, tagged_sentences
from tests.unit.report.drawing import only_run
from tests.unit.report.fake_records import analysed

TEXTS = [" ".join(["the", "good", "bad", "film", "was"][: 1 + i % 5]) for i in range(10)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("two")
    return {"domain": str(tiny.tiny_masked(place / "domain")), "general": str(tiny.tiny_bert(place / "general"))}


def built(encoder) -> tuple[Model, Examples]:
    store = prepare(Texts.of(TEXTS), encoder.prepare, size=None)
    model = Model(encoder, NoNeck(32), Linear(32, 2)).eval()
    return model, Examples(store, torch.zeros(10, dtype=torch.long), ("a", "b"))


def gmap(folders, **options) -> tuple[Model, Examples]:
    torch.manual_seed(0)
    return built(GMap.build(lambda: TEXTS, **folders, length=12, **options))


def test_means_equal_the_recorded_values_without_padding(folders):
    model, examples = gmap(folders, strategy="gated", layers=[1, 3])
    rows = np.array([4, 0, 7])
    view = view_general(model, examples, rows)
    assert view is not None
    assert (view.layers, view.sources) == ((1, 3), ((1, 2, 3), (1, 2, 3)))
    for i, row in enumerate(rows):
        with tape() as side, torch.no_grad():
            model.encode(examples.inputs(torch.tensor([row])))  # one row: no padding
        for layer in range(2):
            mass, gate = view.mass[i, layer], view.gates[layer]
            np.testing.assert_allclose(mass, side["general/mass"][layer][0].mean(-1), rtol=1e-4)
            np.testing.assert_allclose(gate[i], side["general/gate"][layer][0].mean(0), rtol=1e-4)
    assert (view.moved > 0.01).all()


def test_single_sources_have_no_gate_and_only_memory_attention_can_be_hidden(folders):
    model, examples = gmap(folders, attention="gate", share=1.0)
    view = view_general(model, examples, np.arange(3))
    assert view is not None
    assert view.sources == ((1,), (2, 3))
    assert view.gates[0] is None
    assert view.gates[1].shape == (3, 2)
    np.testing.assert_allclose(view.mass, 1 / (1 + np.exp(-1)), rtol=1e-5)
    assert view.moved is None
    model, examples = gmap(folders, attention="cross")
    assert (view_general(model, examples, np.arange(3)).mass == 1).all()


def test_memory_equal_to_the_own_states_changes_nothing(folders):
    """The memory holds the input of layer 2, so half of the attention goes to it without any effect."""
    model, examples = gmap(folders, memory="own", strategy="single", layers=[2])
    model.backbone.companion.reads = {1: (1,)}
    view = view_general(model, examples, np.arange(10))
    assert view is not None
    np.testing.assert_allclose(view.mass, 0.5, atol=1e-4)
    np.testing.assert_allclose(view.moved, 0, atol=1e-4)


def test_scores_with_and_without_the_memory(folders):
    model, examples = gmap(folders)
    scored_parts = []

    def score(part: Part) -> float:
        scored_parts.append((part.domain, part.rows.tolist()))
        with torch.no_grad():
            return float(model(examples.inputs(torch.from_numpy(part.rows))).sum())

    targets = [Part("b", np.arange(3)), Part("c", np.arange(5, 7)), Part("b", np.arange(3, 5))]
    view = view_effects(model, targets, score)
    assert scored_parts == [("b", [0, 1, 2, 3, 4])] * 2 + [("c", [5, 6])] * 2
    plain = built(TextEncoder.build(list, name=folders["domain"], length=12))[0]
    plain.head = model.head
    for domain, rows in (("b", torch.arange(5)), ("c", torch.arange(5, 7))):
        with torch.no_grad():
            as_read, without = (float(each(examples.inputs(rows)).sum()) for each in (model, plain))
        assert view[domain].read == pytest.approx(as_read, rel=1e-4)
        assert view[domain].hidden == pytest.approx(without, rel=1e-4, abs=1e-4)
        assert abs(as_read - without) > 0.01
    for other in (gmap(folders, attention="cross")[0], plain):
        assert view_effects(other, targets, score) == {}
    assert view_effects(model, targets, None) == {}


PARTS = ("context", "question", "answers", "answer_start")


def raw_of(task: str):
    if task == "tag":
        words = [words for words, _ in tagged_sentences("home", 8)]
        return Records([Sentence(each, [0] * len(each)) for each in words]), ("O", "B-THING", "I-THING")
    rows = [[row[part] for part in PARTS] for row in question_rows("home", 8)]
    return Records([Question(c, q, tuple(a), tuple(s)) for c, q, a, s in rows]), ("start", "end")


@pytest.mark.parametrize("task", ["tag", "span"])
def test_tags_and_answers_use_positions_and_windows(task, folders):
    torch.manual_seed(0)
    encoder = GMap.build(list, **folders, length=24)
    raw, classes = raw_of(task)
    prepared = catalog.build("tasks", task, options={}).prepare(encoder, raw, classes)
    model = Model(encoder, NoNeck(32), Linear(32, len(classes))).eval()
    examples = Examples(prepared.store, prepared.y, ("a", "b"), starts=prepared.starts)
    parts = [Part("a", np.arange(4))], [Part("b", np.arange(4, 8))]

    def score(part: Part) -> float:
        rows = examples.rows_of(part)
        kept = examples.map(partial(prepared.task.evaluate, model), rows.numpy(), targets=True)
        return prepared.task.scores(kept, examples.targets(rows), ["nll"])["nll"]

    views = collect_views(model, examples, *parts, seed=0, score=score)
    rows = examples.rows_of(parts[0][0])
    assert (len(rows) > 4) == (task == "span")  # texts have several windows
    view = views.collect(view_reads)[0]["sources"]["a"]
    assert view.mass.shape == (len(rows), 2, 2)
    for i, row in enumerate(rows):
        x = examples.inputs(row[None])  # one row: no padding of tokens and positions
        with torch.no_grad(), tape() as side:
            z = model.encode(x)[0]
        with torch.no_grad(), memory_hidden():
            plain = model.encode(x)[0]
        np.testing.assert_allclose(view.mass[i, 0], side["general/mass"][0][0].mean(-1), rtol=1e-4)
        np.testing.assert_allclose(view.gates[1][i], side["general/gate"][0][0].mean(0), rtol=1e-4)
        each = (z - plain).norm(dim=-1) / plain.norm(dim=-1)
        assert view.moved[i] == pytest.approx(float(each.mean()), rel=1e-3)
        np.testing.assert_allclose(views.sources[0].features[i], z.mean(0), rtol=1e-3, atol=1e-5)
    result = general_use(views, seed=0)
    assert result["targets"]["b"]["scores"]["read"] == pytest.approx(score(parts[1][0]))
    assert result["targets"]["b"]["scores"]["hidden"] != result["targets"]["b"]["scores"]["read"]
    json.dumps(result, allow_nan=False)


def test_other_networks_have_no_result(folders):
    model, examples = built(TextEncoder.build(list, name=folders["domain"], length=12))
    assert view_general(model, examples, np.arange(3)) is None
    parts = [Part("a", np.arange(5))], [Part("b", np.arange(5, 10))]
    assert general_use(collect_views(model, examples, *parts, seed=0), seed=0) is None
    model, examples = gmap(folders)
    result = general_use(collect_views(model, examples, *parts, seed=0), seed=0)
    assert result is not None
    assert (list(result["sources"]), list(result["targets"]), result["layers"]) == (["a"], ["b"], [2, 3])
    assert result["targets"]["b"]["scores"] is None  # not requested
    json.dumps(result, allow_nan=False)


def test_result_in_the_record():
    mass = np.array([[[0.2, 0.4]], [[0.4, 0.8]]])  # two rows, one layer, two heads
    gate = np.array([[0.5, 0.5], [0.0, 1.0]])
    view = GeneralView((6,), mass, ((1, 3),), (gate,), np.array([0.1, 0.3]))
    reads = {"sources": {"a": view}, "targets": {"b": view}}, {"b": Effect(0.9, None)}
    views = Views((), (), further={view_reads: reads})
    one = {"mass": [[0.3, 0.6]], "gates": [[0.25, 0.75]], "depths": [2.5], "moved": 0.2}
    assert general_use(views, seed=0) == {
        "layers": [6],
        "read": [[1, 3]],
        "sources": {"a": one},
        "targets": {"b": {**one, "scores": {"read": 0.9, "hidden": None}}},
    }
    assert mean_depth(np.full((4, 6), 1 / 6), (7, 8, 9, 10, 11, 12)) == pytest.approx(9.5)


def domain(mass: float, moved: float | None = 0.25, **scores):
    heads = [mass - 0.1, mass + 0.1]
    use = {"mass": [heads, heads], "gates": [[0.5, 0.5], None], "depths": [1.5, None], "moved": moved}
    return {**use, "scores": scores} if scores else use


STORED = {
    "layers": [6, 12],
    "read": [[1, 2], [12]],
    "sources": {"a": domain(0.4), "b<i>": domain(0.6)},
    "targets": {"c": domain(0.3, read=0.8, hidden=0.75)},
}


def test_table_has_means_per_layer():
    other = {**STORED, "targets": {"c": domain(0.5, None)}}
    records = [analysed("erm", seed, "c", general_memory=result) for seed, result in enumerate((STORED, other))]
    (section,) = sections({"erm": records}, "accuracy")
    (label, first), (_, second) = section.rows
    assert label == "erm to c, layer 6"
    assert [text for text, _ in first] == ["0.50", "0.40", "0.30", "0.50", "1.5", "1.5", "0.25", "0.800", "0.750"]
    assert [text for text, _ in second][4:6] == ["–", "–"]  # a single source needs no gate
    assert (len(section.columns), section.left_out) == (10, 1)
    assert sections({"erm": [analysed("erm")]}, "accuracy") == []


def test_figures_of_heads_domains_and_gates():
    captions, figures = zip(*draw_panels(only_run("general-memory", STORED)), strict=True)
    assert len(captions) == 3
    assert captions[2] == "Gate of layer 6"
    assert "c, target" in figures[1]
    assert "b<i>" not in "".join(figures)
