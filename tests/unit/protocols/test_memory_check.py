"""A memory that nothing reads is found; one that is meant to rest is not."""

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.data.splits import Part
from holdfast.methods.erm import ERM
from holdfast.nn.backbones.small import MLP
from holdfast.nn.heads import Linear
from holdfast.nn.memory.neck import key_value
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.protocols.evaluate import Unused, check_memory
from tests.unit.methods.streams import EXAMPLES, build

PART = Part("a", np.arange(20))


class ConcatenatedStates(nn.Module):
    """A neck that has a memory and goes around it."""

    def __init__(self, width, memory):
        super().__init__()
        self.width, self.memory = width, memory

    def forward(self, z):
        return z


def method(neck):
    return build(ERM, Model(MLP(inputs=8, hidden=[6]), neck, Linear(6, 2)))


def test_a_memory_that_is_read_passes_and_nothing_changes():
    made = method(key_value(6, slots=4)).train()
    before = {name: value.clone() for name, value in made.state_dict().items() if isinstance(value, torch.Tensor)}
    check_memory(made, EXAMPLES, PART)
    assert made.training
    for name, value in before.items():
        assert torch.equal(value, made.state_dict()[name])


def test_a_memory_that_is_gone_around_is_found():
    with pytest.raises(Unused, match=r"never read \(memory/weights\)"):
        check_memory(method(ConcatenatedStates(6, key_value(6, slots=4))), EXAMPLES, PART)


def test_reads_that_are_no_numbers_are_found():
    made = method(key_value(6, slots=4))
    with torch.no_grad():
        made.model.neck.fused.memory.keys[0].fill_(torch.nan)
    with pytest.raises(Unused, match="no numbers"):
        check_memory(made, EXAMPLES, PART)


@pytest.mark.parametrize("neck", [NoNeck(6), key_value(6, slots=4, share=0.0)])
def test_no_memory_and_one_that_is_switched_off_are_not_asked(neck):
    check_memory(method(neck), EXAMPLES, PART)
