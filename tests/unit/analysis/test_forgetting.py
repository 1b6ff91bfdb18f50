"""The attention of a domain to each segment is what the tape tells, for a bank in time and for a memory on features."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.analysis.forgetting import mass, segment_mass
from holdfast.analysis.views import View, Views, collect_views
from holdfast.core.store import TensorStore
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.nn.backbones.memory_rnn import MemoryRNN
from holdfast.nn.memory.neck import key_value, product_key
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck

TEXTS = ["the food was good", "bad film", "go", "the film was bad bad", "good good good", "no no", "so bad", "go go go"]
DOMAINS = (Part("a", np.arange(0, 5)), Part("b", np.arange(5, 8)))


def view(domain: str, usage: list[float], segments=((1, 0), (3, 4))) -> View:
    return View(domain, np.ones((2, 3)), np.ones((2, 3)), None, np.array(usage), np.array(usage), segments)


def recurrent(examples: list) -> tuple[Model, Examples]:
    torch.manual_seed(0)
    encoder = MemoryRNN.build(lambda: examples, embedding=6, hidden=4, slots=5, slot_width=3, joint=7)
    with torch.no_grad():
        for parameter in encoder.rnn.parameters():
            parameter *= 4  # so that slots differ
    encoder.grow(3, domain=1)
    encoder.grow(2, domain=2)
    store = encoder.prepare(examples)
    return Model(encoder, NoNeck(encoder.width), nn.Linear(encoder.width, 2)), Examples(
        store, torch.zeros(len(examples), dtype=torch.long), ("a", "b")
    )


def test_by_hand():
    assert mass(np.array([0.1, 0.2, 0.3, 0.2]), [1, 3]) == pytest.approx([0.125, 0.875])
    found = segment_mass(Views((view("a", [0.5, 0.25, 0.25, 0.0]),), (view("b", [0.1, 0.1, 0.1, 0.1]),)), seed=0)
    assert found is not None
    assert (found["sizes"], found["owners"]) == ([1, 3], [0, 4])
    entropy = 1.5 * math.log(2)
    assert found["sources"] == {
        "a": {
            "mass": [0.5, 0.5],
            "effective": pytest.approx(math.exp(entropy), abs=0.01),
            "entropy": pytest.approx(entropy, abs=1e-4),
            "evenness": 0.75,
        }
    }
    assert found["targets"]["b"] == {"mass": [0.25, 0.75], "effective": 4.0, "entropy": 1.3863, "evenness": 1.0}
    json.dumps(found, allow_nan=False)
    whole = view("a", [0.5, 0.25, 0.25, 0.0], segments=((4, 0),))
    assert segment_mass(Views((whole,), ()), seed=0) is None  # a memory that did not grow


@pytest.mark.parametrize("examples", [TEXTS, list(zip(TEXTS, TEXTS[::-1], strict=True))], ids=["texts", "pairs"])
def test_a_bank_in_time_is_the_mean_mass_over_the_rows_that_read(examples):
    model, prepared = recurrent(examples)
    views = collect_views(model, prepared, DOMAINS[:1], DOMAINS[1:], seed=0)
    found = segment_mass(views, seed=0)
    assert found is not None
    assert (found["sizes"], found["owners"]) == ([5, 3, 2], [0, 1, 2])
    for part, told in zip(DOMAINS, (found["sources"]["a"], found["targets"]["b"]), strict=True):
        with tape() as heard, torch.no_grad():
            model.eval().encode(prepared.store.take(torch.from_numpy(part.rows)))
        (each,) = heard["memory/mass"]  # (rows, directions, segments)
        read = each[each.sum((1, 2)) > 0]
        assert len(read) < len(each) or part.domain == "b"  # "go" is one word
        assert told["mass"] == pytest.approx(read.mean((0, 1)).tolist(), abs=1e-4)
        assert sum(told["mass"]) == pytest.approx(1, abs=2e-4)
    assert found["sources"]["a"]["mass"] != found["targets"]["b"]["mass"]


@pytest.mark.parametrize("top", [None, 2])
def test_a_memory_on_features_is_cut_by_its_segments(top):
    torch.manual_seed(0)
    x = torch.randn(60, 6)
    neck = key_value(6, slots=4, heads=3, key_width=5, top=top)
    memory = neck.fused.memory
    memory.grow(7, domain=2)
    assert memory.sizes == [4, 7]
    prepared = Examples(TensorStore(x), torch.zeros(60, dtype=torch.long), ("a",))
    model = Model(nn.Linear(6, 6), neck, nn.Linear(6, 2))
    found = segment_mass(collect_views(model, prepared, [Part("a", np.arange(60))], [], seed=0), seed=0)
    with torch.no_grad():
        read = memory.read(model.backbone(x))
    whole = read.weights if read.slots is None else torch.zeros(60, 3, 11).scatter_(2, read.slots, read.weights)
    wanted = [float(part.sum(-1).mean()) for part in whole.split([4, 7], -1)]
    assert found is not None
    assert (found["owners"], found["targets"]) == ([0, 2], {})
    assert found["sources"]["a"]["mass"] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("neck", [NoNeck(6), product_key(6, slots=16, heads=2, key_width=4, top=3)])
def test_what_has_no_segments_has_nothing_to_say(neck):
    prepared = Examples(TensorStore(torch.randn(9, 6)), torch.zeros(9, dtype=torch.long), ("a",))
    model = Model(nn.Linear(6, 6), neck, nn.Linear(6, 2))
    assert segment_mass(collect_views(model, prepared, [Part("a", np.arange(9))], [], seed=0), seed=0) is None


def test_segments_of_another_memory_than_the_one_heard_are_not_taken():
    model, prepared = recurrent(TEXTS)
    model.neck = product_key(model.width, slots=16, heads=2, key_width=4, top=3)
    views = collect_views(model, prepared, DOMAINS, [], seed=0)
    assert all(len(each.usage) == 16 for each in views)
    assert segment_mass(views, seed=0) is None


def test_a_domain_that_never_reads_is_left_out():
    found = segment_mass(Views((view("a", [0.0] * 4),), (view("b", [0.1, 0.1, 0.1, 0.1]),)), seed=0)
    assert found is not None
    assert (list(found["sources"]), list(found["targets"])) == ([], ["b"])
    assert segment_mass(Views((view("a", [0.0] * 4),), ()), seed=0) is None
