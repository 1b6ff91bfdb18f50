"""Attention per segment of a memory that grows: equal to the recorded weights, in time and on features."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.analysis.views import View, Views, collect_views
from holdfast.core.store import TensorStore
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.nn.backbones.memory_rnn import MemoryRNN
from holdfast.nn.memory.neck import key_value, product_key
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from lab.analysis.segments import draw_segments, mass, segment_mass, view_segments
from tests.unit.report.drawing import drawn, only_run

TEXTS = ["the food was good", "bad film", "go", "the film was bad bad", "good good good", "no no", "so bad", "go go go"]
DOMAINS = (Part("a", np.arange(0, 5)), Part("b", np.arange(5, 8)))


def views(*usages: list[float], target: list[float] | None = None, segments=([1, 3], [0, 4])) -> Views:
    """Return views of the sources a, b, ... and of the target t with these weights per slot."""
    sources = tuple(view(name, usage) for name, usage in zip("ab", usages, strict=False))
    targets = () if target is None else (view("t", target),)
    return Views(sources, targets, further={view_segments: [segments]})


def view(domain: str, usage: list[float]) -> View:
    return View(domain, np.ones((2, 3)), np.ones((2, 3)), None, np.array(usage), np.array(usage))


def recurrent(examples: list) -> tuple[Model, Examples]:
    torch.manual_seed(0)
    encoder = MemoryRNN.build(lambda: examples, embedding=6, hidden=4, slots=5, slot_width=3, joint=7)
    with torch.no_grad():
        for parameter in encoder.rnn.parameters():
            parameter *= 4  # larger differences between slots
    encoder.grow(3, domain=1)
    encoder.grow(2, domain=2)
    store = encoder.prepare(examples)
    return Model(encoder, NoNeck(encoder.width), nn.Linear(encoder.width, 2)), Examples(
        store, torch.zeros(len(examples), dtype=torch.long), ("a", "b")
    )


def test_shares_entropy_and_evenness():
    assert mass(np.array([0.1, 0.2, 0.3, 0.2]), [1, 3]) == pytest.approx([0.125, 0.875])
    result = segment_mass(views([0.5, 0.25, 0.25, 0.0], target=[0.1, 0.1, 0.1, 0.1]), seed=0)
    assert result is not None
    assert (result["sizes"], result["owners"]) == ([1, 3], [0, 4])
    entropy = 1.5 * math.log(2)
    assert result["sources"] == {
        "a": {
            "mass": [0.5, 0.5],
            "effective": pytest.approx(math.exp(entropy), abs=0.01),
            "entropy": pytest.approx(entropy, abs=1e-4),
            "evenness": 0.75,
        }
    }
    assert result["targets"]["t"] == {"mass": [0.25, 0.75], "effective": 4.0, "entropy": 1.3863, "evenness": 1.0}
    json.dumps(result, allow_nan=False)
    assert segment_mass(views([0.5, 0.25, 0.25, 0.0], segments=([4], [0])), seed=0) is None  # a single segment


@pytest.mark.parametrize("examples", [TEXTS, list(zip(TEXTS, TEXTS[::-1], strict=True))], ids=["texts", "pairs"])
def test_shares_of_a_recurrent_memory_are_means_over_rows_that_read(examples):
    model, prepared = recurrent(examples)
    result = segment_mass(collect_views(model, prepared, DOMAINS[:1], DOMAINS[1:], seed=0), seed=0)
    assert result is not None
    assert (result["sizes"], result["owners"]) == ([5, 3, 2], [0, 1, 2])
    for part, usage in zip(DOMAINS, (result["sources"]["a"], result["targets"]["b"]), strict=True):
        with tape() as recorded, torch.no_grad():
            model.eval().encode(prepared.store.take(torch.from_numpy(part.rows)))
        (shares,) = recorded["memory/mass"]  # (rows, directions, segments)
        read = shares[shares.sum((1, 2)) > 0]
        assert len(read) < len(shares) or part.domain == "b"  # "go" is one word
        assert usage["mass"] == pytest.approx(read.mean((0, 1)).tolist(), abs=1e-4)
        assert sum(usage["mass"]) == pytest.approx(1, abs=2e-4)
    assert result["sources"]["a"]["mass"] != result["targets"]["b"]["mass"]


@pytest.mark.parametrize("top", [None, 2])
def test_shares_of_a_feature_memory_are_split_by_segment(top):
    torch.manual_seed(0)
    x = torch.randn(60, 6)
    neck = key_value(6, slots=4, heads=3, key_width=5, top=top)
    memory = neck.fused.memory
    memory.grow(7, domain=2)
    assert memory.sizes == [4, 7]
    prepared = Examples(TensorStore(x), torch.zeros(60, dtype=torch.long), ("a",))
    model = Model(nn.Linear(6, 6), neck, nn.Linear(6, 2))
    result = segment_mass(collect_views(model, prepared, [Part("a", np.arange(60))], [], seed=0), seed=0)
    with torch.no_grad():
        read = memory.read(model.backbone(x))
    whole = read.weights if read.slots is None else torch.zeros(60, 3, 11).scatter_(2, read.slots, read.weights)
    expected = [float(part.sum(-1).mean()) for part in whole.split([4, 7], -1)]
    assert result is not None
    assert (result["owners"], result["targets"]) == ([0, 2], {})
    assert result["sources"]["a"]["mass"] == pytest.approx(expected, abs=1e-4)


def test_segments_of_a_memory_that_is_not_recorded_are_ignored():
    model, prepared = recurrent(TEXTS)
    model.neck = product_key(model.width, slots=16, heads=2, key_width=4, top=3)
    collected = collect_views(model, prepared, DOMAINS, [], seed=0)
    assert all(len(each.usage) == 16 for each in collected)
    assert segment_mass(collected, seed=0) is None


def test_domains_that_never_read_are_left_out():
    result = segment_mass(views([0.0] * 4, target=[0.1, 0.1, 0.1, 0.1]), seed=0)
    assert result is not None
    assert (list(result["sources"]), list(result["targets"])) == ([], ["t"])
    assert segment_mass(views([0.0] * 4), seed=0) is None


def test_heat_map_has_domains_by_segments():
    usage = {"effective": 7.4, "entropy": 2.0, "evenness": 0.8}
    domains = {"sources": {"gov": {**usage, "mass": [0.25, 0.75]}}, "targets": {"fic": {**usage, "mass": [0.9, 0.1]}}}
    run = only_run("segment-mass", {"sizes": [1, 3], "owners": [0, 1], **domains})
    assert run.target == "fic"
    ((_, html),) = draw_segments(run)
    plot = drawn(html)
    (heat,) = plot.marks
    assert (heat.x, heat.y) == (["1: 1 slot", "2: 3 slots"], ["gov (7)", "fic (7)"])
    assert heat.z == [[0.25, 0.75], [0.9, 0.1]]
    assert heat.text == [["0.25", "0.75"], ["0.90", "0.10"]]
    assert heat.tips[0][0].startswith(
        "gov (7), segment 1: 1 slot: 0.2500, uniform share 0.2500\nentropy of its slots 2.000"
    )
    assert (heat.low, heat.high, plot.y.reverse) == (0, 1, True)
