"""Image patches: agreement across domains, experts of parts, attention of the class token, and figures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from holdfast.analysis.views import Subject, View, Views
from holdfast.core.tape import tape
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Pixels
from holdfast.data.splits import Part
from lab.analysis import patch_views
from lab.analysis.patch_views import ImageView, PatchView, class_attention, view_patches
from lab.analysis.patches import agreement, attention_maps, part_experts, part_masks, sections
from tests.lab.analysis.test_routing import EXPERTS, built
from tests.unit.report.fake_records import analysed

NAMES = [f"{domain}/cat/{i}.png" for domain in ("photo", "sketch") for i in range(5)]
PARTS = [Part("photo", np.arange(5)), Part("sketch", np.arange(5, 10))]


def views(**fields) -> Views:
    fields = {"experts": 2, "same": {}, "shown": (), "part_maps": (), "attention": ()} | fields
    z = np.zeros((1, 2))
    return Views((View("photo", z, z),), (View("sketch", z, z),), further={view_patches: PatchView(**fields)})


def collected(model, examples, names=None, seed: int = 0) -> PatchView:
    """Return the view of the network for images of these names."""
    raw, zeros = Pixels(np.zeros((10, 3, 4, 4), np.uint8)), np.zeros(10, dtype=np.int64)
    dataset = None if names is None else Dataset("toy", raw, zeros, ("cat",), zeros, ("all",), ids=names)
    view = Views((), (), subject=Subject(model, examples, PARTS[:1], PARTS[1:], seed, dataset)).collect(view_patches)
    assert view is not None
    return view


def test_agreement_and_its_control():
    rng = np.random.default_rng(0)
    maps = rng.integers(0, 2, (40, 4, 4))
    other = maps.copy()
    other[:, 0, 0] = 1 - other[:, 0, 0]  # one patch of sixteen
    same = {str(i): {"photo": a, "sketch": b} for i, (a, b) in enumerate(zip(maps, other, strict=True))}
    pixels = np.zeros((8, 8, 3), np.uint8)
    result = agreement(views(same=same, shown=(ImageView("3", "sketch", pixels),)), seed=0)
    assert result is not None
    assert result["pairs"] == [["photo", "sketch", 0.9375]]
    assert (result["rate"], result["images"], result["targets"]) == (0.9375, 40, ["sketch"])
    assert result["shuffled"] == pytest.approx(0.5, abs=0.05)
    assert result["shuffled"] <= result["high"] < 0.7
    assert result["maps"][0]["experts"] == other[3].tolist()
    assert agreement(views(), seed=0) is None
    json.dumps(result, allow_nan=False)


def test_parts_own_their_nearest_patches():
    result = part_masks([("beak", 0.1, 0.9)], 6, ["beak", "tail"])
    assert result[0].sum() == 9
    assert result[0, 5, 0]  # bottom left
    assert result[0, 3:, :3].all()
    assert not result[1].any()
    assert np.array_equal(result[2], ~result[0])


def test_information_of_parts_and_its_control():
    rng = np.random.default_rng(0)
    images = []
    for _ in range(60):
        x, y = rng.random(2)
        points = [("beak", x, y)]
        images.append((np.where(part_masks(points, 8, ["beak"])[0], 1, 0), points))  # the beak has its own expert
    result = part_experts(views(part_maps=tuple(images)), seed=0)
    assert result is not None
    assert result["parts"] == ["beak", "background"]
    assert result["share"] == [[0.0, 1.0], [1.0, 0.0]]
    assert result["bits"] == pytest.approx(1.0)
    assert result["high"] < 0.3
    fixed = [(np.where(part_masks([("beak", 0.5, 0.5)], 8, ["beak"])[0], 1, 0), [("beak", 0.5, 0.5)]) for _ in range(9)]
    always = part_experts(views(part_maps=tuple(fixed)), seed=0)
    assert always is not None
    assert always["shuffled"] == always["bits"]  # at a fixed position, the position carries all information
    assert part_experts(views(), seed=0) is None


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny")
    return {"experts": built("vit", folder, experts=EXPERTS), "plain": built("vit", folder)}


def test_views_of_a_network_with_experts(networks, monkeypatch):
    model, examples = networks["experts"]
    points = {"cat/1": [("beak", 0.5, 0.5)], "cat/9": [("beak", 0.5, 0.5)]}
    monkeypatch.setattr(patch_views, "read_part_locations", lambda dataset: points)
    result = collected(model, examples, NAMES)
    assert result.experts == 3
    assert sorted(result.same) == [f"cat/{i}" for i in range(5)]
    with tape() as side, torch.no_grad():
        model.encode(examples.inputs(torch.tensor([7])))
    best = side["experts/chosen"][-1][0, 1:, 0].view(4, 4).numpy()
    np.testing.assert_array_equal(result.same["cat/2"]["sketch"], best)
    assert [(each.name, each.domain) for each in result.shown] == [
        ("cat/0", "photo"), ("cat/0", "sketch"), ("cat/1", "photo"), ("cat/1", "sketch"),
    ]  # fmt: skip
    ((_, locations),) = result.part_maps  # only cat/1 of the source
    assert locations == points["cat/1"]
    assert len(result.attention) == 4
    assert not collected(model, examples).same  # without names
    numbered = [f"{i}" for i in range(len(NAMES))]  # as in WILDS: no shared names
    assert not collected(model, examples, numbered).same


def test_networks_with_and_without_experts_show_the_same_images(networks):
    shown = []
    for model, examples in networks.values():
        result = collected(model, examples, NAMES, seed=3)
        shown.append([(each.name, each.domain) for each, _ in result.attention])
    assert shown[0] == shown[1]
    assert result.experts == 0
    maps = attention_maps(views(attention=result.attention), seed=0)
    assert maps is not None
    assert len(maps["maps"]) == 4
    assert np.asarray(maps["maps"][0]["heads"]).shape[1:] == (4, 4)
    assert attention_maps(views(), seed=0) is None


def test_attention_equals_the_softmax_and_leaves_the_network_unchanged(networks):
    model, examples = networks["plain"]
    net, x = model.backbone, examples.inputs(torch.tensor([0, 4]))
    before = net(x)
    last, states = net.stack()[-1], []
    hook = last.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    result = class_attention(net, x)
    hook.remove()
    heads = net.module.config.num_attention_heads
    normed = last.layernorm_before(states[0])
    inner = last.attention
    query, key = (part(normed).unflatten(-1, (heads, -1)).transpose(1, 2) for part in (inner.q_proj, inner.k_proj))
    weights = (query[:, :, :1] @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
    torch.testing.assert_close(result, weights[:, :, 0, 1:].unflatten(-1, (4, 4)))
    assert torch.equal(net(x), before)
    assert net.module.config._attn_implementation != "eager"


IMAGE = "data:image/png;base64,AAAA"
AGREEMENT = {
    "experts": 2, "domains": ["a<i>", "c"], "images": 7, "pairs": [["a<i>", "c", 0.75]], "rate": 0.75, "shuffled": 0.5,
    "high": 0.6, "targets": ["c"],
    "maps": [{"name": "cat/1", "domain": "a<i>", "image": IMAGE, "experts": [[0, 1], [1, 1]]}],
}  # fmt: skip
PART_RESULT = {
    "experts": 2, "images": 9, "parts": ["beak", "background"], "share": [[0.0, 1.0], [0.5, 0.5]], "bits": 0.3,
    "shuffled": 0.01, "high": 0.02, "targets": ["c"],
}  # fmt: skip
ATTENTION = {
    "targets": ["c"],
    "maps": [
        {"name": name, "domain": "c", "image": IMAGE, "heads": [[[0.1, 0.2], [0.3, 0.1]]] * 2}
        for name in ("", "", "cat/1")
    ],
}


def test_sections_describe_and_draw_each_run():
    record = analysed("erm", 0, "c", expert_agreement=AGREEMENT, expert_parts=PART_RESULT, attention_map=ATTENTION)
    across, parts, attention = sections({"erm": [record]}, "accuracy")
    assert all(number in across.runs[0].text for number in ("7 images", "75%", "50%", "60%"))
    assert [caption for caption, _ in across.runs[0].figures] == ["cat/1, a<i>"]
    assert len(across.runs[0].colours) == 2
    assert all(number in parts.runs[0].text for number in ("0.3000", "9 training images", "0.0100", "0.0200"))
    assert "beak" in parts.runs[0].figures[0][1]
    assert [caption for caption, _ in attention.runs[0].figures][::2] == [
        "image 1, c, head 1", "image 2, c, head 1", "cat/1, c, head 1",
    ]  # fmt: skip
    assert sections({"erm": [analysed("erm")]}, "accuracy") == []
