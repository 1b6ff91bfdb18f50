"""Networks with a memory that no example reads, or that returns NaN, are errors."""

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
from holdfast.protocols.fit import Diverged
from tests.unit.methods.streams import EXAMPLES, build

PART = Part("a", np.arange(20))


class Bypass(nn.Module):
    """A neck with a memory that it does not read."""

    def __init__(self, width, memory):
        super().__init__()
        self.width, self.memory = width, memory

    def forward(self, z):
        return z


def method(neck):
    return build(ERM, Model(MLP(inputs=8, hidden=[6]), neck, Linear(6, 2)))


def test_the_check_changes_nothing():
    checked = method(key_value(6, slots=4)).train()
    before = {name: value.clone() for name, value in checked.state_dict().items() if isinstance(value, torch.Tensor)}
    check_memory(checked, EXAMPLES, PART)
    assert checked.training
    for name, value in before.items():
        assert torch.equal(value, checked.state_dict()[name])


def test_an_unread_memory_is_an_error():
    with pytest.raises(Unused, match=r"memory/weights"):
        check_memory(method(Bypass(6, key_value(6, slots=4))), EXAMPLES, PART)


def test_a_nan_read_is_an_error():
    checked = method(key_value(6, slots=4))
    with torch.no_grad():
        checked.model.neck.fused.memory.keys[0].fill_(torch.nan)
    with pytest.raises(Diverged, match="NaN"):
        check_memory(checked, EXAMPLES, PART)


@pytest.mark.parametrize("neck", [NoNeck(6), key_value(6, slots=4, share=0.0)])
def test_no_memory_or_a_disabled_one_is_fine(neck):
    check_memory(method(neck), EXAMPLES, PART)
