"""Memories as necks, on features and inside a transformer: what share 0 and 1 give, what is learned, what is kept."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast import DomainClassifier
from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.backbones.small import MLP, Features
from holdfast.nn.memory.neck import MemoryBlend, effective_slots, key_value
from holdfast.nn.model import Model
from tests.tiny import tiny_bert, tiny_vit
from tests.unit.nn.transformers import LABELS, transformer

SMALL = {"slots": 6, "heads": 2, "key_width": 3}
Z = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
INSIDE = [("bert", "tokens"), ("bert", "layers"), ("vit", "tokens"), ("vit", "layers")]


def neck(width: int = 5, **options):
    torch.manual_seed(0)
    return key_value(width, **{**SMALL, **options})


def inside(family, place, folder, **options) -> tuple[Model, Model, object]:
    """The plain model, the same with a memory inside, and examples."""
    plain, x = transformer(family, folder)
    body, _ = transformer(family, folder)
    made, head = neck(plain.width, place=place, **options), nn.Linear(plain.width, 2)
    return Model(plain, nn.Identity(), head).eval(), Model(body, made, head).eval(), x


def test_share_none_half_and_all():
    assert neck(share=0.0)(Z) is Z
    everything = neck(share=1.0)
    content = everything.fused.memory.read(Z).content
    assert torch.equal(everything(Z), content)
    assert_close(neck(share=0.3)(Z), 0.7 * Z + 0.3 * content)


def test_states_of_any_shape_are_read_one_by_one():
    made, states = neck().fused, torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(1))
    assert_close(made(states)[1, 1], made(states[1, 1][None])[0])
    assert made(states.transpose(0, 1)).shape == (2, 3, 5)
    assert_close(made(states.transpose(0, 1)), made(states).transpose(0, 1))


def test_the_tape_tells_what_was_read():
    made = neck(top=2)
    with tape() as side:
        fused = made(Z)
    assert {name: value[0].shape for name, value in side.items()} == {
        "memory/content": (4, 5),
        "memory/weights": (4, 2, 2),
        "memory/slots": (4, 2, 2),
    }
    assert not any(value[0].requires_grad for value in side.values())
    assert_close((Z + side["memory/content"][0]) / 2, fused.detach())
    with tape() as side:
        neck(share=0.0)(Z)
    assert not side


def test_effective_slots():
    even, one = torch.full((3, 2, 8), 1 / 8), torch.eye(8)[[2, 2, 2]][:, None].expand(3, 2, 8)
    assert float(effective_slots(even)) == pytest.approx(8)
    assert float(effective_slots(one)) == pytest.approx(1)
    spread = torch.eye(8)[:4, None]  # each example reads a slot of its own
    assert float(effective_slots(spread)) == pytest.approx(4)


@pytest.mark.parametrize(("family", "place"), INSIDE)
def test_inside_a_transformer_share_zero_is_the_plain_one(family, place, tmp_path):
    plain, made, x = inside(family, place, tmp_path, share=0.0)
    assert sum(isinstance(part, MemoryBlend) for part in made.modules()) == (1 if place == "tokens" else 3)
    assert torch.equal(made(x), plain(x))


@pytest.mark.parametrize(("family", "place"), INSIDE)
def test_inside_a_transformer_it_changes_the_outputs_and_learns(family, place, tmp_path):
    plain, made, x = inside(family, place, tmp_path)
    assert float((made(x) - plain(x)).detach().abs().max()) > 1e-3
    parts = [part for part in made.modules() if isinstance(part, MemoryBlend)]
    memory = [p for part in parts for p in part.parameters()]
    assert len({id(p) for p in memory}) == 4 * len(parts)  # every layer has a memory of its own
    others = {id(p) for p in made.parameters()} - {id(p) for p in memory} - {id(p) for p in made.head.parameters()}
    for p in made.parameters():
        p.requires_grad_(id(p) not in others)
    optimizer, losses = torch.optim.Adam(made.trainable_parameters(), lr=0.02), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(made(x), LABELS)
        loss.backward()
        assert all(bool(p.grad.any()) for p in memory)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(("family", "place"), INSIDE)
def test_a_copy_shares_nothing(family, place, tmp_path):
    _, made, x = inside(family, place, tmp_path)
    other, before = copy.deepcopy(made), made(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(made(x), before)
    assert sum(isinstance(part, MemoryBlend) for part in other.modules()) == (1 if place == "tokens" else 3)


@pytest.mark.parametrize("settings", [{}, {"place": "tokens"}, {"place": "layers", "top": 2}], ids=str)
@pytest.mark.parametrize("family", ["bert", "vit"])
def test_a_model_folder_gives_the_same_predictions(family, settings, tmp_path):
    check_folder(family, tmp_path, {"neck": "memory", **{f"neck.{k}": v for k, v in {**SMALL, **settings}.items()}})


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_one_more_layer_is_in_the_folder_too(family, tmp_path):
    check_folder(family, tmp_path, {"neck": "layer"})


def check_folder(family: str, folder, settings: dict) -> None:
    """Train a little, save, load, and compare with what it was and with a model that has no such neck."""
    chance = np.random.default_rng(0)
    if family == "bert":
        encoder = f"hf:{tiny_bert(folder / 'tiny')}"
        x: object = [" ".join(chance.choice(["good", "bad", "film", "the"], size=4)) for _ in range(24)]
    else:
        encoder = f"vit:{tiny_vit(folder / 'tiny')}"
        x = chance.integers(0, 255, (24, 3, 16, 16), dtype=np.uint8)
    y, d = np.arange(24) % 2, np.repeat(["a", "b"], 12)
    made = DomainClassifier(encoder=encoder, tune="full", steps=6, batch=4, settings=settings).fit(x, y, domains=d)
    again = DomainClassifier.from_pretrained(made.save_pretrained(folder / "model"))
    np.testing.assert_array_equal(again.predict_proba(x), made.predict_proba(x))
    plain = DomainClassifier(encoder=encoder, tune="full", steps=6, batch=4).fit(x, y, domains=d)
    assert np.abs(plain.predict_proba(x) - made.predict_proba(x)).max() > 1e-6  # calibration flattens both


def test_a_memory_inside_cannot_be_trained_on_kept_features(tmp_path):
    for settings in ({"neck": "memory", "neck.place": "tokens"}, {"neck": "layer"}):
        made = DomainClassifier(encoder=f"hf:{tiny_bert(tmp_path / 'tiny')}", tune="frozen", settings=settings)
        with pytest.raises(BadInput, match="kept features of a frozen encoder, have no layers"):
            made.fit(["good", "bad"] * 4, [0, 1] * 4, domains=["a", "b"] * 4)
    live = DomainClassifier(
        encoder=f"hf:{tiny_bert(tmp_path / 'tiny')}", tune="frozen", cache=False, steps=2, settings=settings
    )
    live.fit(["good", "bad"] * 4, [0, 1] * 4, domains=["a", "b"] * 4)
    assert live.record_.cost["learning_parameters"] > 0


def test_frozen_slots_learn_nothing():
    made = neck(frozen=True)
    assert not any(p.requires_grad for p in made.parameters())
    model = Model(Features(inputs=5), neck(frozen=True, query_norm=True), nn.Linear(5, 2)).train()
    before = copy.deepcopy(model.neck.state_dict())
    model(Z)
    assert all(torch.equal(value, before[name]) for name, value in model.neck.state_dict().items())


def test_bad_input():
    with pytest.raises(BadInput, match=r"share.*1\.5"):
        neck(share=1.5)
    with pytest.raises(BadInput, match="did you mean 'tokens'"):
        neck(place="token")
    with pytest.raises(BadInput, match="MLP has no stack of layers"):
        Model(MLP(inputs=3, hidden=(5,)), neck(place="layers"), nn.Linear(5, 2))
