"""What is said of experts: counts against the tape, information against known cases and its control, maps of images."""

from __future__ import annotations

import base64
import io
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.analysis.routing import information, routing, shuffled
from holdfast.analysis.routing_views import Routed, view_routing
from holdfast.analysis.views import View, Views, collect_views
from holdfast.core.tape import tape
from holdfast.data.batches import Examples, prepare
from holdfast.data.raw import Pixels, Texts
from holdfast.data.splits import Part
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.report.routing import panels
from holdfast.report.sections import Shown
from tests.unit.nn.transformers import transformer

EXPERTS = {"count": 3, "at": [0, 2], "inner": 8}


def built(family, folder, count=10, **options):
    net, _ = transformer(family, folder, **options)
    chance = np.random.default_rng(0)
    if family == "vit":
        raw = Pixels(chance.integers(0, 255, (count, 3, 16, 16), dtype=np.uint8))
    else:
        raw = Texts.of([" ".join(chance.choice(["good", "bad", "film"], size=1 + i % 7)) for i in range(count)])
    store = prepare(raw, net.prepare, size=net.size)
    model = Model(net, NoNeck(32), Linear(32, 2)).eval()
    return model, Examples(store, torch.zeros(count, dtype=torch.long), ("a", "b"))


def test_what_finds_no_room_in_evaluation_is_told(tmp_path):
    model, examples = built("vit", tmp_path, experts={**EXPERTS, "top": 1, "eval_capacity": 0.5})
    rows = np.arange(8)
    found = view_routing(model, examples, rows)
    with tape() as side, torch.no_grad():
        model.encode(examples.inputs(torch.from_numpy(rows)))
    told = torch.stack(side["share/experts/dropped"])
    assert 0.4 < told.min() < 1  # half of an even share is all that there is room for
    np.testing.assert_allclose(found.dropped, told.expand(8, 2), rtol=1e-5)
    views = Views((View("a", np.zeros((8, 2)), np.zeros((8, 2)), routing=found),), ())
    record = routing(views, seed=0)
    assert record["sources"]["a"]["dropped"] == pytest.approx(told.tolist(), abs=1e-5)
    title, _ = panels(Shown("erm", "t", 0, "x", record))[0]
    assert title == f"Layer 0, without room {told[0]:.1%} to {told[0]:.1%}"
    assert view_routing(built("vit", tmp_path, experts=EXPERTS)[0], examples, rows).dropped is None


@pytest.mark.parametrize("family", ["vit", "bert"])
def test_counts_are_those_of_the_tape_row_by_row_without_padding(family, tmp_path):
    torch.manual_seed(0)
    model, examples = built(family, tmp_path, experts=EXPERTS)
    rows = np.array([3, 0, 7])
    found = view_routing(model, examples, rows)
    assert found.blocks == (0, 2)
    for i, row in enumerate(rows):
        with tape() as side, torch.no_grad():
            model.encode(examples.inputs(torch.tensor([row])))  # alone: nothing is padded
        for layer in range(2):
            chosen, scores = side["experts/chosen"][layer][0], side["experts/scores"][layer][0]
            assert found.first[i, layer].tolist() == torch.bincount(chosen[:, 0], minlength=3).tolist()
            assert found.load[i, layer].tolist() == torch.bincount(chosen.flatten(), minlength=3).tolist()
            chance = scores.softmax(-1)
            np.testing.assert_allclose(found.importance[i, layer], chance.sum(0), rtol=1e-4)
            entropy = -(chance * chance.log()).sum(-1).mean()
            assert found.entropy[i, layer] == pytest.approx(float(entropy), rel=1e-4)
    assert len(found.maps) == (2 if family == "vit" else 0)


def test_maps_are_the_patches_of_the_image(tmp_path):
    torch.manual_seed(0)
    model, examples = built("vit", tmp_path, experts=EXPERTS)
    image, best = view_routing(model, examples, np.array([4, 5])).maps[0]
    x = examples.inputs(torch.tensor([4]))
    np.testing.assert_array_equal(image, x[0].permute(1, 2, 0).numpy())
    with tape() as side, torch.no_grad():
        model.encode(x)
    np.testing.assert_array_equal(best, side["experts/chosen"][-1][0, 1:, 0].view(4, 4).numpy())


def test_a_network_without_experts_says_nothing(tmp_path):
    model, examples = built("vit", tmp_path)
    assert view_routing(model, examples, np.arange(3)) is None
    part = Part("a", np.arange(5))
    assert routing(collect_views(model, examples, [part], [Part("b", np.arange(5, 10))], seed=0), seed=0) is None


def test_information_by_hand():
    assert information(np.eye(4) * 7) == pytest.approx(2.0)  # an expert a domain
    assert information(np.array([[1.0, 2.0], [10.0, 20.0]])) == pytest.approx(0.0, abs=1e-12)
    half = information(np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]))
    assert half == pytest.approx(0.5)  # one token in two gives its domain away


def test_the_control_deals_whole_rows():
    chance = np.random.default_rng(0)
    rows = [chance.multinomial(50, p, size=40) for p in ([0.8, 0.1, 0.1], [0.1, 0.8, 0.1])]
    told = information(np.stack([each.sum(axis=0) for each in rows]))
    control = shuffled(rows, seed=0)
    assert told > 0.3
    assert told > 5 * control.max()
    np.testing.assert_array_equal(control, shuffled(rows, seed=0))
    same = [chance.multinomial(50, [0.4, 0.3, 0.3], size=40) for _ in range(2)]
    assert information(np.stack([each.sum(axis=0) for each in same])) < 4 * np.quantile(shuffled(same, seed=1), 0.95)


def made(name: str, load, images: int = 0) -> View:
    counts = np.asarray(load, dtype=float)[None, None].repeat(6, axis=0)  # (6, 1, e)
    maps = tuple((np.full((8, 8, 3), 9 * i, np.uint8), np.eye(2, dtype=int)) for i in range(images))
    z = np.zeros((6, 2))
    return View(name, z, z, routing=Routed((10,), counts, counts, counts, np.full((6, 1), 0.7), maps=maps))


def test_what_a_record_gets():
    views = Views((made("a", [3, 1], 2), made("b", [1, 3], 2)), (made("c", [2, 2], 2),))
    found = routing(views, seed=0)
    assert found is not None
    assert (found["experts"], found["blocks"]) == (2, [10])
    assert found["sources"]["a"] == {"load": [[0.75, 0.25]], "importance": [[0.75, 0.25]], "entropy": [0.7]}
    assert list(found["targets"]) == ["c"]
    (told,) = found["information"]
    shares = np.array([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]])
    by_hand = 1 + float((shares * np.log2(shares)).sum()) / 3
    assert told["bits"] == pytest.approx(by_hand, abs=1e-5)
    assert 0 <= told["shuffled"] <= told["high"]
    assert [each["domain"] for each in found["maps"]] == ["a", "b", "c", "a", "b", "c"]
    data = found["maps"][3]["image"].removeprefix("data:image/png;base64,")
    assert Image.open(io.BytesIO(base64.b64decode(data))).getpixel((3, 3)) == (9, 9, 9)
    json.dumps(found, allow_nan=False)
    assert math.isfinite(told["high"])
