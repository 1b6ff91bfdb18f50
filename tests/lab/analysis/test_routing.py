"""Routing: counts against recorded values, information against its control, image maps, and figures."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from holdfast.analysis.views import Views, collect_views
from holdfast.core.tape import tape
from holdfast.data.batches import Examples, prepare
from holdfast.data.raw import Pixels, Texts
from holdfast.data.splits import Part
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.report.sections import RunResult
from lab.analysis.expert_views import RoutingView, view_experts, view_routing
from lab.analysis.routing import (
    draw_map,
    draw_panels,
    expert_colour,
    information,
    routing,
    sections,
    shuffled,
    to_grey,
    training_shares,
)
from tests.unit.nn.transformers import transformer
from tests.unit.report.drawing import only_run
from tests.unit.report.fake_records import analysed, record

EXPERTS = {"count": 3, "at": [0, 2], "inner": 8}


def built(family, folder, count=10, **options):
    net, _ = transformer(family, folder, **options)
    rng = np.random.default_rng(0)
    if family == "vit":
        raw = Pixels(rng.integers(0, 255, (count, 3, 16, 16), dtype=np.uint8))
    else:
        raw = Texts.of([" ".join(rng.choice(["good", "bad", "film"], size=1 + i % 7)) for i in range(count)])
    store = prepare(raw, net.prepare, size=net.size)
    model = Model(net, NoNeck(32), Linear(32, 2)).eval()
    return model, Examples(store, torch.zeros(count, dtype=torch.long), ("a", "b"))


def test_dropped_pairs_are_reported_with_a_capacity(tmp_path):
    model, examples = built("vit", tmp_path, experts={**EXPERTS, "top": 1, "eval_capacity": 0.5})
    rows = np.arange(8)
    result = view_routing(model, examples, rows)
    with tape() as side, torch.no_grad():
        model.encode(examples.inputs(torch.from_numpy(rows)))
    dropped = torch.stack(side["share/experts/dropped"])
    assert 0.4 < dropped.min() < 1  # the capacity is half of a uniform share
    np.testing.assert_allclose(result.dropped, dropped.expand(8, 2), rtol=1e-5)
    result = routing(views_of({"a": result}), seed=0)
    assert result["sources"]["a"]["dropped"] == pytest.approx(dropped.tolist(), abs=1e-5)
    caption, _ = draw_panels(RunResult("erm", "t", 0, "x", result))[0]
    assert f"{dropped[0]:.1%}" in caption
    assert view_routing(built("vit", tmp_path, experts=EXPERTS)[0], examples, rows).dropped is None


@pytest.mark.parametrize("family", ["vit", "bert"])
def test_counts_equal_the_recorded_choices_without_padding(family, tmp_path):
    torch.manual_seed(0)
    model, examples = built(family, tmp_path, experts=EXPERTS)
    rows = np.array([3, 0, 7])
    result = view_routing(model, examples, rows)
    assert result.blocks == (0, 2)
    for i, row in enumerate(rows):
        with tape() as side, torch.no_grad():
            model.encode(examples.inputs(torch.tensor([row])))  # one row: no padding
        for layer in range(2):
            chosen, scores = side["experts/chosen"][layer][0], side["experts/scores"][layer][0]
            assert result.first[i, layer].tolist() == torch.bincount(chosen[:, 0], minlength=3).tolist()
            assert result.load[i, layer].tolist() == torch.bincount(chosen.flatten(), minlength=3).tolist()
            probabilities = scores.softmax(-1)
            np.testing.assert_allclose(result.importance[i, layer], probabilities.sum(0), rtol=1e-4)
            entropy = -(probabilities * probabilities.log()).sum(-1).mean()
            assert result.entropy[i, layer] == pytest.approx(float(entropy), rel=1e-4)
    assert len(result.maps) == (2 if family == "vit" else 0)


def test_maps_hold_the_best_expert_per_patch(tmp_path):
    torch.manual_seed(0)
    model, examples = built("vit", tmp_path, experts=EXPERTS)
    image, best = view_routing(model, examples, np.array([4, 5])).maps[0]
    x = examples.inputs(torch.tensor([4]))
    np.testing.assert_array_equal(image, x[0].permute(1, 2, 0).numpy())
    with tape() as side, torch.no_grad():
        model.encode(x)
    np.testing.assert_array_equal(best, side["experts/chosen"][-1][0, 1:, 0].view(4, 4).numpy())


def test_networks_without_experts_have_no_result(tmp_path):
    model, examples = built("vit", tmp_path)
    assert view_routing(model, examples, np.arange(3)) is None
    part = Part("a", np.arange(5))
    assert routing(collect_views(model, examples, [part], [Part("b", np.arange(5, 10))], seed=0), seed=0) is None


def test_information():
    assert information(np.eye(4) * 7) == pytest.approx(2.0)  # one expert per domain
    assert information(np.array([[1.0, 2.0], [10.0, 20.0]])) == pytest.approx(0.0, abs=1e-12)
    half = information(np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]))
    assert half == pytest.approx(0.5)  # half of the tokens identify their domain


def test_control_shuffles_complete_rows():
    rng = np.random.default_rng(0)
    rows = [rng.multinomial(50, p, size=40) for p in ([0.8, 0.1, 0.1], [0.1, 0.8, 0.1])]
    bits = information(np.stack([counts.sum(axis=0) for counts in rows]))
    control = shuffled(rows, np.random.default_rng(0))
    assert bits > 0.3
    assert bits > 5 * control.max()
    np.testing.assert_array_equal(control, shuffled(rows, np.random.default_rng(0)))
    same = [rng.multinomial(50, [0.4, 0.3, 0.3], size=40) for _ in range(2)]
    assert information(np.stack([counts.sum(axis=0) for counts in same])) < 4 * np.quantile(
        shuffled(same, np.random.default_rng(1)), 0.95
    )


def views_of(sources, targets=None) -> Views:
    return Views((), (), further={view_experts: {"sources": sources, "targets": targets or {}}})


def view_of(load, images: int = 0) -> RoutingView:
    counts = np.asarray(load, dtype=float)[None, None].repeat(6, axis=0)  # (6, 1, e)
    maps = tuple((np.full((8, 8, 3), 9 * i, np.uint8), np.eye(2, dtype=int)) for i in range(images))
    return RoutingView((10,), counts, counts, counts, np.full((6, 1), 0.7), maps=maps)


def test_result_in_the_record():
    result = routing(views_of({"a": view_of([3, 1], 2), "b": view_of([1, 3], 2)}, {"c": view_of([2, 2], 2)}), seed=0)
    assert result is not None
    assert (result["experts"], result["blocks"]) == (2, [10])
    assert result["sources"]["a"] == {"load": [[0.75, 0.25]], "importance": [[0.75, 0.25]], "entropy": [0.7]}
    assert list(result["targets"]) == ["c"]
    (stats,) = result["information"]
    shares = np.array([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]])
    expected = 1 + float((shares * np.log2(shares)).sum()) / 3
    assert stats["bits"] == pytest.approx(expected, abs=1e-5)
    assert 0 <= stats["shuffled"] <= stats["high"]
    assert [each["domain"] for each in result["maps"]] == ["a", "b", "c", "a", "b", "c"]
    data = result["maps"][3]["image"].removeprefix("data:image/png;base64,")
    assert Image.open(io.BytesIO(base64.b64decode(data))).getpixel((3, 3)) == (9, 9, 9)
    json.dumps(result, allow_nan=False)
    assert math.isfinite(stats["high"])


IMAGE = "data:image/png;base64,AAAA"


def stored(entropy: float = 0.5, bits: float = 0.25) -> dict:
    def domain(first, second, entropy):
        return {"load": [first, second], "importance": [first, second], "entropy": [entropy, entropy]}

    return {
        "experts": 2, "blocks": [8, 10],
        "sources": {"a": domain([0.5, 0.5], [1.0, 0.0], entropy), "b<i>": domain([0.5, 0.5], [0.5, 0.5], entropy)},
        "targets": {"c": domain([1.0, 0.0], [1.0, 0.0], 0.1)},
        "information": [{"bits": bits, "shuffled": 0.01, "high": 0.02}] * 2,
        "maps": [{"domain": "b<i>", "image": IMAGE, "experts": [[0, 1], [1, 1]]}],
    }  # fmt: skip


def test_table_has_means_per_layer():
    records = [analysed("erm", 0, "c", routing=stored()), analysed("erm", 1, "c", routing=stored(bits=0.35))]
    (section,) = sections({"erm": records}, "accuracy")
    (label, first), (_, second) = section.rows
    assert label == "erm to c, layer 8"
    assert [text for text, _ in first] == ["2", "2.00", "1.00", "0.50", "0.10", "0.3000", "0.0100", "0.0200"]
    assert second[1][1] == pytest.approx(1.5)  # one expert in a, both in b
    assert (len(section.columns), section.left_out) == (9, 1)
    assert sections({"erm": [analysed("erm")]}, "accuracy") == []


def test_figures_of_layers_and_images():
    captions, figures = zip(*draw_panels(only_run("routing", stored())), strict=True)
    assert captions == ("Layer 8", "Layer 10", "b<i>")  # the template escapes captions
    assert "base64,AAAA" in figures[2]
    with Image.open(io.BytesIO(base64.b64decode(re.findall(r'base64,([^"]+)"', figures[2])[-1]))) as opened:
        colours = set(map(tuple, np.asarray(opened)[..., :3].reshape(-1, 3).tolist()))
    assert colours >= {ImageColor.getrgb(expert_colour(expert)) for expert in (0, 1)}
    assert "b<i>" not in "".join(figures)


def test_images_below_expert_colours_are_grey():
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (200, 30, 30)).save(file, format="PNG")
    coloured = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    grey = to_grey(coloured)
    with Image.open(io.BytesIO(base64.b64decode(grey.removeprefix("data:image/png;base64,")))) as opened:
        assert (opened.mode, opened.size) == ("L", (4, 4))
    html = draw_map({"image": coloured, "experts": [[0, 1], [1, 1]]}, 2, "some-map").replace("\\u002f", "/")
    assert coloured not in html
    assert grey in html
    assert to_grey(IMAGE) == IMAGE  # not an image
    assert "example.org" not in draw_map({"image": "https://example.org/x.png", "experts": [[0]]}, 1, "remote")


def test_experts_have_distinct_colours():
    assert len({expert_colour(e) for e in range(12)}) == 12


def trained(target: str = "c", seed: int = 0, *, capacity: bool = False):
    def entry(step: int, first: float) -> dict:
        shares = {
            f"experts/{what}/0/{e}": v for what in ("load", "importance") for e, v in ((0, first), (1, 1 - first))
        }
        dropped = {"experts/dropped/0": first / 10} if capacity else {}
        return {"step": step, "risk": 1.0, **shares, **dropped}

    run = record("erm", seed, {target: 0.5})
    stage = {**run.stages[0], "history": [entry(5, 0.5), entry(10, 0.6), entry(5, 0.7)]}
    return replace(run, stages=[stage, {**stage, "history": [entry(5, 0.9)]}])


def test_training_shares_continue_over_phases_and_stages():
    shares = training_shares(trained())
    assert set(shares) == {("load", 0), ("importance", 0)}
    assert shares["load", 0][0] == [(5, 0.5), (10, 0.6), (15, 0.7), (20, 0.9)]
    assert training_shares(record("erm", 0, {"c": 0.5})) == {}


def test_training_section_shows_the_first_seed_of_every_target():
    runs = [trained(target, seed) for seed in (0, 1) for target in ("d10", "d9")]
    (section,) = sections({"erm + experts": runs, "coral + experts": [trained("d9")]}, "accuracy")
    assert [run.title for run in section.runs] == [
        "erm + experts, to-d9, seed 0", "coral + experts, to-d9, seed 0", "erm + experts, to-d10, seed 0",
    ]  # fmt: skip
    assert section.left_out == 2
    assert [caption.split(",")[0] for caption, _ in section.runs[0].figures] == ["Load", "Importance"]


def test_training_section_has_dropped_pairs():
    shares = training_shares(trained(capacity=True))
    assert [value for _, value in shares["dropped", 0][0]] == pytest.approx([0.05, 0.06, 0.07, 0.09])
    (section,) = sections({"erm + experts": [trained(capacity=True)]}, "accuracy")
    (run,) = section.runs
    assert run.figures[-1][0].startswith("Dropped")
    assert "9.0%" in run.text
