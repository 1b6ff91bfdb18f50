"""Growing slots, words, units and columns of a model."""

import pytest
import torch
from torch import nn

from holdfast.core.errors import BadInput
from holdfast.methods.progressive import add_slots, add_units, add_words
from holdfast.nn.backbones.memory_rnn import MemoryRNN
from holdfast.nn.backbones.small import MLP
from holdfast.nn.growth import growable_memories
from holdfast.nn.heads import Linear
from holdfast.nn.memory.key_value import KeyValueMemory
from holdfast.nn.memory.neck import key_value
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck

WORDS = ["a", "b", "c", "d"]


def recurrent(slots=5, pairs=False):
    torch.manual_seed(0)
    body = MemoryRNN(words=WORDS, pairs=pairs, embedding=6, hidden=4, slots=slots, slot_width=6, joint=8, dropout=0.0)
    return Model(body, NoNeck(body.width), Linear(body.width, 3)).eval()


def texts(model):
    return model.backbone.prepare(["a b c", "d", "b a"]).take(torch.arange(3))


def test_growable_memories():
    assert [type(each) for each in growable_memories(recurrent())] == [MemoryRNN]
    assert not list(growable_memories(recurrent(slots=0)))
    body = MLP(inputs=8, hidden=[6])
    assert [type(each) for each in growable_memories(Model(body, key_value(6, slots=4), Linear(6, 2)))] == [
        KeyValueMemory
    ]


def test_slots_are_added_to_every_memory():
    model = recurrent()
    new = add_slots(model, 3, domain=2)
    assert [tuple(p.shape) for p in new] == [(2, 3, 4), (2, 3, 6)]
    assert model.backbone.rnn.bank.owner.tolist() == [0] * 5 + [2] * 3
    neck = key_value(6, slots=4, heads=2, key_width=8)
    model = Model(MLP(inputs=8, hidden=[6]), neck, Linear(6, 2))
    new = add_slots(model, 3, domain=1)
    assert [tuple(p.shape) for p in new] == [(2, 3, 8), (3, 6)]
    with pytest.raises(BadInput, match="expand=M"):
        add_slots(recurrent(slots=0), 3, domain=1)


def test_words_are_added_to_encoders_with_a_vocabulary():
    model = recurrent()
    (new,) = add_words(model, ["b", "e", "f"], vectors=None)
    assert new.shape == (2, 6)
    with pytest.raises(BadInput, match="expand=V"):
        add_words(Model(MLP(inputs=8, hidden=[6]), NoNeck(6), Linear(6, 2)), ["e"], vectors=None)


@pytest.mark.parametrize("pairs", [False, True])
def test_head_adapts_to_wider_features(pairs):
    model = recurrent(pairs=pairs)
    before = model.head.weight.detach().clone()
    new = add_units(model, 3, worth=0, column=False)
    assert new
    if pairs:
        assert torch.equal(model.head.weight, before)
        return
    assert model.width == model.backbone.width == 14
    assert model.head.settings == {"width": 14, "outputs": 3}
    at = [0, 1, 2, 3, 7, 8, 9, 10]  # four units forwards, then four backwards
    assert torch.equal(model.head.weight[:, at], before)
    assert model(texts(model)).shape == (3, 3)


def test_column_reinitialises_the_head_and_freezes_the_rest():
    model = recurrent()
    old = dict(model.backbone.named_parameters())
    before = model.head.weight.detach().clone()
    new = add_units(model, 2, worth=0, column=True)
    assert not any(parameter.requires_grad for parameter in old.values())
    assert {id(p) for p in model.trainable_parameters()} == {id(p) for p in new}
    assert not torch.equal(model.head.weight[:, :8], before)
    assert model(texts(model)).shape == (3, 3)


def test_units_for_a_parameter_budget():
    wide = MemoryRNN(words=WORDS, pairs=True)
    model = Model(wide, NoNeck(wide.width), Linear(wide.width, 3))
    before = sum(p.numel() for p in model.parameters())
    add_units(model, 0, worth=600_000, column=False)
    assert wide.settings["hidden"] == 345  # the published equivalent of 500 slots in two directions
    assert sum(p.numel() for p in model.parameters()) - before == pytest.approx(600_000, rel=0.01)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Model(MLP(inputs=8, hidden=[6]), NoNeck(6), Linear(6, 2)), "expand=H"),
        (lambda: Model(recurrent().backbone, key_value(8, slots=4), Linear(8, 2)), "neck=none"),
        (lambda: Model(recurrent().backbone, NoNeck(8), nn.Linear(8, 2)), "head=linear"),
    ],
)
def test_unsupported_networks_raise(model, message):
    with pytest.raises(BadInput, match=message):
        add_units(model(), 2, worth=0, column=False)
