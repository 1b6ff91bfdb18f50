"""Every mechanism in the catalog has a null that changes outputs inside its context and nothing after it."""

from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.seeds import seeded
from holdfast.nn.engagement import Mechanism, mechanisms
from holdfast.nn.experts.layer import SparseMoE
from holdfast.nn.heads import Linear
from holdfast.nn.memory.bank import SegmentedSlots
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.memory.read import HasMemory
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from tests.tiny import tiny_bert, tiny_roberta

PLAIN_NECKS = {"none", "projection", "ffn", "layer", "param", "wide"}  # necks without a mechanism
GENERAL = (
    {},
    {"attention": "cross"},
    {"attention": "gate"},
    {"memory": "other"},
    {"strategy": "beside"},
)
SIZES = {"embedding": 8, "hidden": 12, "slots": 6}


def is_plain(name: str) -> bool:
    return name in PLAIN_NECKS or name.startswith("param")


def stirred(model: Model, seed: int = 0) -> Model:
    """Return the model in evaluation mode with other weights, so that no two slots or experts are equal."""
    with torch.no_grad(), seeded(seed, "stir"):
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def state(model: Model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def check_nulls(model: Model, x: object, predict=None) -> None:
    """Check every mechanism: other outputs inside, the same bits afterwards, no change of state or random numbers."""
    predict = predict or model
    named = mechanisms(model)
    assert named
    with torch.no_grad():
        before, saved, rng = predict(x), state(model), torch.get_rng_state()
        for name, modules in named.items():
            assert all(isinstance(module.null_name, str) and module.null_name for module in modules)
            with ExitStack() as nulls:
                for module in modules:
                    nulls.enter_context(module.null())
                inside = predict(x)
                assert list(model.state_dict()) == list(saved)
            assert inside.shape == before.shape
            assert not torch.equal(inside, before), name
            with pytest.raises(RuntimeError, match="stopped"), modules[0].null():
                raise RuntimeError("stopped")
            assert torch.equal(predict(x), before), name
            for key, value in model.state_dict().items():
                assert torch.equal(value, saved[key]), key
    assert torch.equal(torch.get_rng_state(), rng)


def check_coverage(model: Model) -> None:
    """Every module that stores or routes content is, or contains, a mechanism."""
    for module in model.modules():
        if isinstance(module, SegmentedSlots | SparseMoE) or (isinstance(module, HasMemory) and module.tape_name):
            assert any(isinstance(part, Mechanism) for part in module.modules()), type(module)


def with_neck(benches, name: str) -> tuple[Model, object]:
    inside = name == "layer" or "experts" in str(catalog.NECKS[name].target)
    bench = benches["tiny-bert" if inside else "mlp"]
    model = bench.model(name, **({"at": [0, 2]} if inside and name != "layer" else {}))
    batch = bench.batch()
    if isinstance(model.neck, HeterogeneousMemory):
        stirred(model)
        with torch.no_grad():
            z = model.encode(batch.x)
            model.neck.write(z, batch.y)
            model.neck.set_support(model.neck.read_queue(z))
    return stirred(model, 1), batch.x


@pytest.mark.parametrize("name", catalog.NECKS)
def test_every_neck_with_a_mechanism_has_a_null(name, benches):
    model, x = with_neck(benches, name)
    check_coverage(model)
    if is_plain(name):
        assert not mechanisms(model), f"remove '{name}' from the necks without a mechanism"
    else:
        assert mechanisms(model), f"neck '{name}' has no null: implement holdfast.nn.engagement.Mechanism"
        check_nulls(model, x)


@pytest.mark.parametrize("place", ["tokens", "layers"])
def test_memories_inside_a_transformer_are_replaced_together(place, benches):
    bench = benches["tiny-bert"]
    model = stirred(bench.model("memory", place=place))
    assert {name: len(modules) for name, modules in mechanisms(model).items()} == {
        "memory": 1 if place == "tokens" else 3
    }
    check_nulls(model, bench.batch().x)


def test_experts_of_an_encoder_have_a_null(benches):
    bench = benches["tiny-vit-experts"]
    model = stirred(bench.model())
    assert list(mechanisms(model)) == ["experts"]
    check_nulls(model, bench.batch().x)


GROWABLE = [name for name, entry in catalog.ENCODERS.items() if entry.growable and "classify" in entry.tasks]


@pytest.mark.parametrize("name", GROWABLE)
def test_every_growable_encoder_has_a_null(name, benches):
    dataset = benches["tiny-bert"].dataset
    encoder = catalog.build("encoders", name, partial(dataset.raw.take, np.arange(12)), options=SIZES)
    model = stirred(Model(encoder, NoNeck(encoder.width), Linear(encoder.width, 2)))
    x = encoder.prepare(dataset.raw.take(np.arange(12))).take(torch.arange(12))
    encoder.grow(3, domain=1)
    assert list(mechanisms(model)) == ["memory"]
    check_coverage(model)
    check_nulls(model, x)


@pytest.mark.parametrize("options", GENERAL, ids=lambda options: "-".join(options.values()) or "default")
def test_general_models_have_a_null(options, benches, tmp_path):
    dataset = benches["tiny-bert"].dataset
    folders = {"domain": str(tiny_bert(tmp_path / "domain")), "general": str(tiny_roberta(tmp_path / "general"))}
    training = partial(dataset.raw.take, np.arange(24))
    encoder = catalog.build("encoders", "gmap", training, options={**folders, "length": 16, **options})
    model = stirred(Model(encoder, NoNeck(encoder.width), Linear(encoder.width, 2)))
    assert list(mechanisms(model)) == ["general"]
    check_coverage(model)
    check_nulls(model, encoder.prepare(dataset.raw.take(np.arange(6))).take(torch.arange(6)))


@pytest.mark.parametrize("body", ["mlp", "cnn", "tiny-bert"])
def test_plain_networks_have_no_mechanism(body, benches):
    assert not mechanisms(benches[body].model())
