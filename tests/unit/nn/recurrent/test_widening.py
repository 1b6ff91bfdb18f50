"""Widening: old entries do not change, new ones are initialised, and units fit a parameter budget."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.growth import expand_inputs, units_for_budget
from holdfast.nn.recurrent.layer import RecurrentLayer

LENGTHS = torch.tensor([3, 6, 1, 6, 2])
H, E = 3, 2


def net(cell: str, *, slots: int = 4, dtype: torch.dtype = torch.float64, **options) -> RecurrentLayer:
    torch.manual_seed(0)
    module = RecurrentLayer(5, H, cell=cell, slots=slots, slot_width=2, **options).to(dtype)
    if slots:
        module.grow(3, domain=1)
    return module


def texts() -> torch.Tensor:
    return torch.randn(5, 6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("slots", [0, 4])
def test_zero_connections_leave_the_old_network(cell, slots):
    module, x = net(cell, slots=slots), texts()
    before = module(x, LENGTHS).packed
    module.widen(E)
    assert not torch.allclose(module(x, LENGTHS).packed[..., :H], before)  # connected in both directions
    with torch.no_grad():
        for block in module.by_state.unflatten(-1, (-1, H + E)).unbind(-2):
            block[:, H:, :H] = 0
        for keys in module.bank.keys if slots else ():
            keys[..., H:] = 0
    after = module(x, LENGTHS).packed
    assert_close(after[..., :H], before, rtol=0, atol=1e-15)
    assert bool((after[..., H:] != 0).all())


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_new_units_are_connected_and_trained(cell):
    module, x = net(cell), texts()
    module.widen(E)
    for side in (slice(H), slice(H, None)):
        grads = torch.autograd.grad(
            module(x, LENGTHS).last().unflatten(-1, (2, -1))[..., side].sum(), module.parameters()
        )
        for (name, _), grad in zip(module.named_parameters(), grads, strict=True):
            units = grad if "values" in name else grad.unflatten(-1, (-1, H + E))
            assert all(bool(unit.any()) for unit in units.unbind(-1)), name


def test_initialisation_of_new_entries():
    module = RecurrentLayer(40, 30, slots=50)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    module.widen(70)
    for name, parameter in module.named_parameters():
        new = parameter.detach()[parameter != 0]
        if "values" not in name:
            assert 0.095 < float(new.abs().max()) <= 0.1, name
            assert float(new.std()) == pytest.approx(0.1 / 3**0.5, rel=0.08), name


def test_expand_inputs():
    torch.manual_seed(0)
    old = nn.Linear(3, 4).double().requires_grad_(False)
    at = torch.tensor([0, 4, 5])
    module = expand_inputs(old, at, 60)
    assert torch.equal(module.weight[:, at], old.weight)
    assert torch.equal(module.bias, old.bias)
    others = module.weight[:, [1, 2, 3, *range(6, 60)]]
    assert 0.12 < float(others.abs().max()) <= 60**-0.5
    assert not module.weight.requires_grad


@pytest.mark.parametrize(("parameters", "units"), [(1, 1), (100, 10), (109, 10), (111, 11), (10**12, 10**6)])
def test_units_for_budget(parameters, units):
    assert units_for_budget(parameters, lambda e: e**2) == units


def test_bad_input():
    with pytest.raises(BadInput, match=r"parameters.*0"):
        units_for_budget(0, lambda e: e)
    with pytest.raises(BadInput, match=r"units.*0"):
        net("lstm").widen(0)
