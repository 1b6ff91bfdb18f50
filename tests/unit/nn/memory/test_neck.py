"""Memories as necks, on features and inside a transformer."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast import DomainClassifier
from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.backbones.small import MLP
from holdfast.nn.memory.neck import MemoryBlend, effective_slots, key_value
from holdfast.nn.model import Model
from tests.tiny import tiny_bert, tiny_vit
from tests.unit.nn.transformers import LABELS, transformer

SMALL = {"slots": 6, "heads": 2, "key_width": 3}
Z = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
INSIDE = [("bert", "tokens"), ("bert", "layers"), ("vit", "tokens"), ("vit", "layers")]


def neck(width: int = 5, **options):
    torch.manual_seed(0)
    return key_value(width, **{**SMALL, "fusion": "interpolate", **options})


def inside(family, place, folder, **options) -> tuple[Model, Model, object]:
    """Return the plain model, the model with a memory inside, and examples."""
    plain, x = transformer(family, folder)
    body, _ = transformer(family, folder)
    module, head = neck(plain.width, place=place, **options), nn.Linear(plain.width, 2)
    return Model(plain, nn.Identity(), head).eval(), Model(body, module, head).eval(), x


def test_share_interpolates():
    assert neck(share=0.0)(Z) is Z
    everything = neck(share=1.0)
    content = everything.fused.memory.read(Z).content
    assert torch.equal(everything(Z), content)
    assert_close(neck(share=0.3)(Z), 0.7 * Z + 0.3 * content)


def test_gate_adds_the_content():
    module = neck(fusion="gate")
    assert torch.equal(module(Z), Z)
    content = module.fused.memory.read(Z).content
    with torch.no_grad():
        module.fused.gate.fill_(0.3)
    assert_close(module(Z), Z + 0.3 * content)
    assert neck(fusion="gate", share=0.0)(Z) is Z


def test_weights_of_earlier_versions_are_interpolated():
    old, module = neck(share=0.3), neck(share=0.3, fusion="gate", similarity="dot")
    state = old.state_dict()
    assert not any("gate" in name for name in state)
    module.load_state_dict(state)
    assert torch.equal(module(Z), old(Z))
    assert module.fused.examples_needed == 0
    old, module = (neck(similarity="cosine", init=init) for init in ("published", "data"))
    module.load_state_dict(old.state_dict())
    assert_close(module(Z), old(Z))


def test_states_of_any_shape():
    module, states = neck().fused, torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(1))
    assert_close(module(states)[1, 1], module(states[1, 1][None])[0])
    assert module(states.transpose(0, 1)).shape == (2, 3, 5)
    assert_close(module(states.transpose(0, 1)), module(states).transpose(0, 1))


def test_reads_are_recorded():
    module = neck(top=2)
    with tape() as side:
        fused = module(Z)
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
    spread = torch.eye(8)[:4, None]  # every example reads another slot, and every read uses one
    assert float(effective_slots(spread)) == pytest.approx(1)
    mixed = torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0], [1 / 3, 1 / 3, 1 / 3]]])
    assert float(effective_slots(mixed)) == pytest.approx((2 + 1 + 1 + 3) / 4)


def test_effective_slots_are_recorded_in_evaluation_mode():
    module = neck()
    with tape() as side:
        module.train()(Z)
        module.eval()(Z)
    assert len(side["memory/weights"]) == 2
    (value,) = side["stat/memory/effective_slots"]
    assert value == effective_slots(side["memory/weights"][1])


@pytest.mark.parametrize(("family", "place"), INSIDE)
def test_zero_share_inside_a_transformer_equals_the_plain_one(family, place, tmp_path):
    plain, module, x = inside(family, place, tmp_path, share=0.0)
    assert sum(isinstance(part, MemoryBlend) for part in module.modules()) == (1 if place == "tokens" else 3)
    assert torch.equal(module(x), plain(x))


@pytest.mark.parametrize(("family", "place"), INSIDE)
def test_memory_inside_a_transformer_is_trained(family, place, tmp_path):
    plain, module, x = inside(family, place, tmp_path)
    assert float((module(x) - plain(x)).detach().abs().max()) > 1e-3
    parts = [part for part in module.modules() if isinstance(part, MemoryBlend)]
    memory = [p for part in parts for p in part.parameters()]
    assert len({id(p) for p in memory}) == 4 * len(parts)  # one memory per layer
    others = {id(p) for p in module.parameters()} - {id(p) for p in memory} - {id(p) for p in module.head.parameters()}
    for p in module.parameters():
        p.requires_grad_(id(p) not in others)
    optimizer, losses = torch.optim.Adam(module.trainable_parameters(), lr=0.02), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x), LABELS)
        loss.backward()
        assert all(bool(p.grad.any()) for p in memory)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(("family", "settings"), [
    ("bert", {}),
    ("vit", {"place": "tokens"}),
    ("bert", {"place": "layers", "top": 2}),
], ids=str)  # fmt: skip
def test_saved_and_loaded_model_is_equal(family, settings, tmp_path):
    check_folder(family, tmp_path, {"neck": "memory", **{f"neck.{k}": v for k, v in {**SMALL, **settings}.items()}})


@pytest.mark.parametrize("family", ["vit", pytest.param("bert", marks=pytest.mark.slow)])
def test_extra_layer_is_saved(family, tmp_path):
    check_folder(family, tmp_path, {"neck": "layer"})


def check_folder(family: str, folder, settings: dict) -> None:
    """Train, save, load, and compare with the saved model and with a model without this neck."""
    rng = np.random.default_rng(0)
    if family == "bert":
        encoder = f"hf:{tiny_bert(folder / 'tiny')}"
        x: object = [" ".join(rng.choice(["good", "bad", "film", "the"], size=4)) for _ in range(24)]
    else:
        encoder = f"vit:{tiny_vit(folder / 'tiny')}"
        x = rng.integers(0, 255, (24, 3, 16, 16), dtype=np.uint8)
    y, d = np.arange(24) % 2, np.repeat(["a", "b"], 12)
    module = DomainClassifier(encoder=encoder, tune="full", steps=6, batch=4, settings=settings).fit(x, y, domains=d)
    again = DomainClassifier.from_pretrained(module.save_pretrained(folder / "model"))
    np.testing.assert_array_equal(again.predict_proba(x), module.predict_proba(x))
    plain = DomainClassifier(encoder=encoder, tune="full", steps=6, batch=4).fit(x, y, domains=d)
    assert np.abs(plain.predict_proba(x) - module.predict_proba(x)).max() > 1e-6  # calibration flattens both


def test_memory_inside_a_transformer_needs_a_live_encoder(tmp_path):
    for settings in ({"neck": "memory", "neck.place": "tokens"}, {"neck": "layer"}):
        module = DomainClassifier(encoder=f"hf:{tiny_bert(tmp_path / 'tiny')}", tune="frozen", settings=settings)
        with pytest.raises(BadInput, match="no stack of layers"):
            module.fit(["good", "bad"] * 4, [0, 1] * 4, domains=["a", "b"] * 4)
    live = DomainClassifier(
        encoder=f"hf:{tiny_bert(tmp_path / 'tiny')}", tune="frozen", cache=False, steps=2, settings=settings
    )
    live.fit(["good", "bad"] * 4, [0, 1] * 4, domains=["a", "b"] * 4)
    assert live.record_.cost["learning_parameters"] > 0


def test_bad_input():
    with pytest.raises(BadInput, match="MLP has no stack of layers"):
        Model(MLP(inputs=3, hidden=(5,)), neck(place="layers"), nn.Linear(5, 2))
