"""Patches: agreement across domains and parts by hand and against their controls, attention as the network has it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from holdfast.analysis.patch_views import PatchView, Seen, class_attention, view_patches
from holdfast.analysis.patches import agreement, attention_maps, owned, part_experts
from holdfast.analysis.views import View, Views
from holdfast.core.tape import tape
from holdfast.data.splits import Part
from tests.unit.analysis.test_routing import EXPERTS, built

NAMES = [f"{domain}/cat/{i}.png" for domain in ("photo", "sketch") for i in range(5)]
PARTS = [Part("photo", np.arange(5)), Part("sketch", np.arange(5, 10))]


def seen(**given) -> Views:
    held = {"experts": 2, "same": {}, "shown": (), "parts": (), "looks": ()} | given
    z = np.zeros((1, 2))
    return Views((View("photo", z, z),), (View("sketch", z, z),), None, PatchView(**held))


def test_agreement_by_hand_and_beside_other_images():
    chance = np.random.default_rng(0)
    maps = chance.integers(0, 2, (40, 4, 4))
    other = maps.copy()
    other[:, 0, 0] = 1 - other[:, 0, 0]  # one patch of sixteen
    same = {str(i): {"photo": a, "sketch": b} for i, (a, b) in enumerate(zip(maps, other, strict=True))}
    pixels = np.zeros((8, 8, 3), np.uint8)
    found = agreement(seen(same=same, shown=(Seen("3", "sketch", pixels),)), seed=0)
    assert found is not None
    assert found["pairs"] == [["photo", "sketch", 0.9375]]
    assert (found["rate"], found["images"], found["targets"]) == (0.9375, 40, ["sketch"])
    assert found["shuffled"] == pytest.approx(0.5, abs=0.05)
    assert found["shuffled"] <= found["high"] < 0.7
    assert found["maps"][0]["experts"] == other[3].tolist()
    assert agreement(seen(), seed=0) is None
    json.dumps(found, allow_nan=False)


def test_patches_of_a_part_are_the_nearest():
    found = owned([("beak", 0.1, 0.9)], 6, ["beak", "tail"])
    assert found[0].sum() == 9
    assert found[0, 5, 0]  # left below
    assert found[0, 3:, :3].all()
    assert not found[1].any()
    assert np.array_equal(found[2], ~found[0])


def test_parts_tell_the_expert_and_the_control_knows_the_place_alone():
    chance = np.random.default_rng(0)
    images = []
    for _ in range(60):
        x, y = chance.random(2)
        points = [("beak", x, y)]
        images.append((np.where(owned(points, 8, ["beak"])[0], 1, 0), points))  # the beak has an expert of its own
    found = part_experts(seen(parts=tuple(images)), seed=0)
    assert found is not None
    assert found["parts"] == ["beak", "background"]
    assert found["share"] == [[0.0, 1.0], [1.0, 0.0]]
    assert found["bits"] == pytest.approx(1.0)
    assert found["high"] < 0.3
    fixed = [(np.where(owned([("beak", 0.5, 0.5)], 8, ["beak"])[0], 1, 0), [("beak", 0.5, 0.5)]) for _ in range(9)]
    always = part_experts(seen(parts=tuple(fixed)), seed=0)
    assert always is not None
    assert always["shuffled"] == always["bits"]  # at one place in all images it is the place that tells
    assert part_experts(seen(), seed=0) is None


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny")
    return {"experts": built("vit", folder, experts=EXPERTS), "plain": built("vit", folder)}


def test_views_of_a_network_with_experts(networks):
    model, examples = networks["experts"]
    points = {"cat/1": [("beak", 0.5, 0.5)], "cat/9": [("beak", 0.5, 0.5)]}
    found = view_patches(model, examples, PARTS[:1], PARTS[1:], seed=0, names=NAMES, points=points)
    assert found is not None
    assert found.experts == 3
    assert sorted(found.same) == [f"cat/{i}" for i in range(5)]
    with tape() as side, torch.no_grad():
        model.encode(examples.inputs(torch.tensor([7])))
    best = side["experts/chosen"][-1][0, 1:, 0].view(4, 4).numpy()
    np.testing.assert_array_equal(found.same["cat/2"]["sketch"], best)
    assert [(each.name, each.domain) for each in found.shown] == [
        ("cat/0", "photo"), ("cat/0", "sketch"), ("cat/1", "photo"), ("cat/1", "sketch"),
    ]  # fmt: skip
    ((_, told),) = found.parts  # cat/1 of the source alone
    assert told == points["cat/1"]
    assert len(found.looks) == 4
    assert not view_patches(model, examples, PARTS[:1], PARTS[1:], seed=0).same  # without names
    numbered = [f"{i}" for i in range(len(NAMES))]  # as in WILDS: no two are one
    assert not view_patches(model, examples, PARTS[:1], PARTS[1:], seed=0, names=numbered).same


def test_the_same_images_for_networks_with_and_without_experts(networks):
    looked = []
    for model, examples in networks.values():
        found = view_patches(model, examples, PARTS[:1], PARTS[1:], seed=3, names=NAMES)
        assert found is not None
        looked.append([(each.name, each.domain) for each, _ in found.looks])
    assert looked[0] == looked[1]
    assert found.experts == 0
    told = attention_maps(seen(looks=found.looks), seed=0)
    assert told is not None
    assert len(told["maps"]) == 4
    assert np.asarray(told["maps"][0]["heads"]).shape[1:] == (4, 4)
    assert attention_maps(seen(), seed=0) is None


def test_attention_is_the_softmax_of_queries_and_keys_and_leaves_the_network(networks):
    model, examples = networks["plain"]
    net, x = model.backbone, examples.inputs(torch.tensor([0, 4]))
    before = net(x)
    last, states = net.stack()[-1], []
    hook = last.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    found = class_attention(net, x)
    hook.remove()
    heads = net.module.config.num_attention_heads
    normed = last.layernorm_before(states[0])
    inner = last.attention
    query, key = (part(normed).unflatten(-1, (heads, -1)).transpose(1, 2) for part in (inner.q_proj, inner.k_proj))
    weights = (query[:, :, :1] @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
    torch.testing.assert_close(found, weights[:, :, 0, 1:].unflatten(-1, (4, 4)))
    assert torch.equal(net(x), before)
    assert net.module.config._attn_implementation != "eager"
