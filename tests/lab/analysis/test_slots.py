"""Class slots: collected rows, attention shares, projections, similarity and their figures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.analysis.projection import PCA
from holdfast.analysis.views import Views, collect_views
from holdfast.core.store import TensorStore
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.memory.queue import SyntheticMemory
from holdfast.nn.model import Model
from holdfast.stats.labels import grouped
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from lab.analysis.class_views import CLOUD_ROWS, ClassView, slot_similarity, view_classes
from lab.analysis.slots import (
    CAPTIONS,
    SHARES,
    draw_attention,
    draw_maps,
    nearest_neighbours,
    sections,
    shares,
    size_maps,
    slot_attention,
    slot_diversity,
    slot_map,
)
from lab.analysis.tsne import TSNE
from tests.unit.report.drawing import SCRIPT, drawn, only_run
from tests.unit.report.fake_records import record

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


def views_of(net: Model, seed: int = 0) -> Views:
    return collect_views(net, EXAMPLES, [A, B], [T], seed=seed)


def class_view(views: Views) -> ClassView:
    view = views.collect(view_classes)
    assert view is not None
    return view


def test_batch_is_sorted_by_class_and_read_as_one():
    net = model().eval()
    view = class_view(views_of(net))
    assert view.labels.tolist() == [c for c in range(10) for _ in range(10)]
    assert view.attention is not None
    assert view.attention.shape == (100, 100 + 36)
    np.testing.assert_allclose(view.attention.sum(axis=1), 1, atol=1e-5)
    assert view.recalled_labels.tolist() == [c for c in range(3) for _ in range(min(CLOUD_ROWS, 25))]
    with torch.no_grad():
        known = net.neck.read_queue(net.backbone(X[:300]))[:, :D].numpy()
    for row, label in zip(view.recalled, view.recalled_labels, strict=True):  # training rows of its class
        apart = np.abs(known - row).max(axis=1)
        assert apart.min() < 1e-5
        assert int(Y[apart.argmin()]) == label


def test_network_is_unchanged_and_rows_are_sampled_by_seed():
    net = model().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    views = [class_view(views_of(net, seed)) for seed in (0, 0, 1)]
    assert net.training
    assert net.neck.context == "support"
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    first, again, other = (each.attention for each in views)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("options", "has"),
    [({}, (1, 1, 1)), ({"real": 0}, (1, 1, 1)), ({"slots": 0}, (0, 1, 0)), ({"slots": 0, "across": False}, (0, 0, 0)),
     ({"slots": 1}, (1, 1, 0))],
)  # fmt: skip
def test_missing_parts_of_the_network_have_no_result(options, has):
    views = views_of(model(**options))
    result = slot_map(views, seed=0), slot_attention(views, seed=0), slot_diversity(views, seed=0)
    assert tuple(int(each is not None) for each in result) == has
    if result[1] is not None:
        assert (result[1]["mass"]["real"] is None) == (options.get("real") == 0)


def test_attention_shares_by_class_and_for_uniform_attention():
    result = slot_attention(views_of(model()), seed=0)
    assert result is not None
    assert result["rows"] == [10] * 10
    assert result["slots"] == [3] * 10  # of the shown classes; the shares include the slots of two more
    assert np.shape(result["map"]) == (100, 130)
    for line in (*result["shares"].values(), result["mean"], result["even"]):
        assert sum(line) == pytest.approx(1, abs=3e-4)
    even = [1 / 136, 9 / 136, 90 / 136, 3 / 136, 33 / 136]
    assert result["even"] == pytest.approx(even, abs=1e-4)
    itself, others, queue, slots = result["mass"]["across"]
    assert queue == 0
    assert (itself, others, slots) == pytest.approx(
        (result["mean"][0], sum(result["mean"][1:3]), sum(result["mean"][3:])), abs=3e-4
    )
    assert result["mass"]["real"][0] + result["mass"]["real"][2] == pytest.approx(1, abs=1e-3)
    json.dumps(result, allow_nan=False)


def test_shares():
    attention = np.array([[0.1, 0.2, 0.3, 0.15, 0.25], [0.5, 0.0, 0.1, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    result = shares(attention, np.array([0, 0, 1]), np.array([0, 1]))
    np.testing.assert_allclose(
        result, [[0.1, 0.2, 0.3, 0.15, 0.25], [0.0, 0.5, 0.1, 0.4, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]], atol=1e-12
    )


def test_nearest_neighbours():
    apart = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
    assert nearest_neighbours(apart, np.array([0, 0, 1, 1])) == (1.0, pytest.approx(1 / 3))
    assert nearest_neighbours(apart, np.array([0, 1, 0, 1])) == (0.0, pytest.approx(1 / 3))
    assert nearest_neighbours(np.zeros((4, 2)), np.array([0, 0, 1, 1]))[0] == pytest.approx(1 / 3)  # all equal


@pytest.mark.parametrize("algorithm", [PCA, TSNE], ids=lambda algorithm: algorithm.name)
def test_projections_of_all_slots_and_of_three_classes_with_rows(algorithm):
    result = slot_map(views_of(model()), seed=0, algorithm=algorithm)
    assert result is not None
    assert result["targets"] == ["t"]
    assert [(g["class"], g["kind"], len(g["x"])) for g in result["alone"]["groups"]] == [
        (str(c), "slots", 3) for c in range(C)
    ]
    assert [(g["class"], g["kind"], len(g["y"])) for g in result["beside"]["groups"]] == [
        (str(c), kind, count) for c in range(3) for kind, count in (("slots", 3), ("rows", 25))
    ]
    assert (result["alone"]["variance"] is None) == (algorithm is TSNE)
    every = [v for g in result["beside"]["groups"] for v in (*g["x"], *g["y"])]
    assert (min(every), max(every)) == (0.0, 1.0)
    json.dumps(result, allow_nan=False)


def test_identical_slots():
    views = views_of(model(start="zeros"))
    assert slot_map(views, seed=0, algorithm=TSNE) is not None
    result = slot_diversity(views, seed=0)
    assert result is not None
    assert result["mean"] == 1.0
    assert set(result["classes"].values()) == {1.0}
    drawn = slot_diversity(views_of(model(slots=8)), seed=0)
    assert drawn is not None
    assert abs(drawn["mean"]) < drawn["scatter"] == pytest.approx(D**-0.5, abs=1e-4)


def test_slots_initialised_with_zeros_stay_identical_in_a_run():
    data = world("vector", "rotation", domains=3, size=60, classes=3, seed=0)
    workspace, result = Workspace(data), {}
    for start in ("zeros", "normal"):
        settings = {"encoder.hidden": [8], "neck.real": 16, "neck.slots": 4, "neck.start": start, "neck.support": 16}
        spec = make_spec(data, method="hma", steps=20, every=10, batch=8, settings=settings)
        run, _ = train(spec, workspace.episodes(spec)[0], workspace, analyse=("slot-diversity", "slot-attention"))
        result[start] = run.analysis
    assert result["zeros"]["slot-diversity"]["mean"] == pytest.approx(1, abs=1e-3)
    assert result["normal"]["slot-diversity"]["mean"] < 0.9
    assert result["zeros"]["slot-attention"]["classes"] == list(data.classes)


def stored_map(algorithm: str = "pca") -> dict:
    def group(name: str, kind: str) -> dict:
        return {"class": name, "kind": kind, "x": [0.0, 1.0], "y": [0.5, 0.5]}

    variance = [0.75, 0.25] if algorithm == "pca" else None
    alone = {"variance": variance, "groups": [group("cat", "slots"), group(SCRIPT, "slots")]}
    beside = {"variance": variance, "groups": [group("cat", "slots"), group("cat", "rows"), group(SCRIPT, "slots")]}
    return {"how": algorithm, "targets": ["films"], "nearest": 0.5, "chance": 0.3333, "alone": alone, "beside": beside}


def stored_attention(real: list[float] | None = None) -> dict:
    by_class = {"cat": [0.1, 0.2, 0.3, 0.3, 0.1], SCRIPT: [0.2, 0.0, 0.2, 0.5, 0.1]}
    return {
        "targets": ["films"], "classes": list(by_class), "rows": [2, 1], "slots": [1, 1],
        "map": [[1000, 2000, 3000, 3000, 1000], [2000, 1000, 3000, 3000, 1000], [2000, 0, 2000, 1000, 5000]],
        "mass": {"real": real, "across": [0.1, 0.5, 0.0, 0.4]}, "shares": by_class,
        "mean": [0.13, 0.13, 0.27, 0.37, 0.1], "even": [0.2, 0.13, 0.27, 0.2, 0.2],
    }  # fmt: skip


STORED_SIMILARITY = {
    "targets": ["films"],
    "slots": 4,
    "mean": 0.6,
    "scatter": 0.1,
    "classes": {"cat": 1.0, SCRIPT: 0.2},
}


def test_projection_has_one_colour_per_class_and_open_marks_for_rows():
    (first, alone), (second, beside) = draw_maps(only_run("slot-map", stored_map()))
    assert [first, second] == list(CAPTIONS.values())
    plot = drawn(alone)
    assert [mark.name for mark in plot.marks] == ["cat, slots", f"{SCRIPT}, slots"]
    assert SCRIPT not in alone
    assert "75 %" in plot.x.title
    both = drawn(beside).marks
    assert both[0].colour == both[1].colour != both[2].colour
    assert [mark.symbol.endswith("-open") for mark in both] == [False, True, False]
    assert both[0].colour == plot.marks[0].colour
    ((_, tsne), _) = draw_maps(only_run("slot-map-tsne", stored_map("tsne")))
    assert drawn(tsne).y.title == ""


def test_attention_map_has_the_batch_on_the_left_and_classes_as_rows():
    (_, attention), (_, table) = draw_attention(only_run("slot-attention", stored_attention()))
    plot = drawn(attention)
    (pixels,) = plot.marks
    assert pixels.z[2] == pytest.approx([0.2, 0.0, 0.2, 0.1, 0.5])
    assert pixels.high == pytest.approx(0.5)
    assert [at for at, _ in plot.y.ticks] == [0.5, 2.0]
    vertical, horizontal = plot.rules
    assert (vertical.x, horizontal.y) == (2.5, 1.5)  # between batch and slots, between the classes
    (by_class,) = drawn(table).marks
    assert by_class.x == SHARES
    assert by_class.z[-1] == [0.2, 0.13, 0.27, 0.2, 0.2]


def sized(real: int, slots: int, score: float | None, *, seed: int = 0, **other):
    args = {"real": real, "slots": slots, "context": "batch"}
    return record("hma", seed, {"t": score}, neck="heterogeneous", neck_args=args, **other)


def test_mean_scores_by_memory_size():
    runs = [sized(0, 0, 0.5), sized(0, 8, 0.6), sized(128, 0, 0.7), sized(128, 8, 0.8), sized(128, 8, 0.9, seed=1)]
    runs += [sized(64, 8, None), record("erm", 0, {"t": 0.1})]
    ((data, html),) = size_maps(runs, "accuracy")
    assert data == "reviews"
    (cells,) = drawn(html).marks
    assert (cells.x, cells.y) == (["0", "8"], ["0", "128"])
    assert cells.z == [pytest.approx([50.0, 60.0]), pytest.approx([70.0, 85.0])]
    assert cells.text == [["50.0", "60.0"], ["70.0", "85.0"]]
    (section,) = sections(grouped(runs), "accuracy")
    assert [run.title for run in section.runs] == ["reviews"]


def test_size_maps_need_two_sizes_of_each_kind_and_equal_other_settings():
    assert size_maps([sized(0, slots, 0.5) for slots in (0, 8, 16)], "accuracy") == []
    first, second = (
        [sized(real, slots, 0.5, data=data) for real in (0, 8) for slots in (0, 8)] for data in ("reviews", "films")
    )
    assert [data for data, _ in size_maps([*first, *second], "accuracy")] == ["reviews", "films"]
    (incomplete,) = drawn(size_maps(first[:3], "accuracy")[0][1]).marks
    assert incomplete.z[1][1] is None


def test_slot_similarity_is_the_mean_cosine_of_pairs():
    memory = SyntheticMemory(2, 3, 4)
    expected = []
    for rows in memory.values.detach().split(3):
        pairs = [torch.cosine_similarity(rows[i], rows[j], dim=0) for i in range(3) for j in range(3) if i != j]
        expected.append(torch.stack(pairs).mean())
    assert_close(slot_similarity(memory), torch.stack(expected))
    with torch.no_grad():
        memory.values[:3] = torch.tensor([1.0, 2.0, 0.0, -1.0])
    assert_close(slot_similarity(memory)[0], torch.tensor(1.0))
    assert_close(slot_similarity(SyntheticMemory(2, 3, 4, start="zeros")), torch.ones(2))
