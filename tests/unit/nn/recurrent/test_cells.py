"""In-place cell steps equal the differentiable step and its gradient, on every device."""

import pytest
import torch
from torch.testing import assert_close

from holdfast.accel.registry import module
from holdfast.ops.cells import BLOCKS, CELLS
from tests.devices import GPU, KERNEL_DEVICES

G, A, H, LONGER = 2, 3, 150, 7  # directions, rows of the step, units, rows of the tensors that the step is a slice of


def drawn(*shape, device, rows=LONGER):
    """Return a slice of rows of a longer tensor, as in the time loop."""
    rng = torch.Generator().manual_seed(sum(shape))
    return torch.randn(G, rows, *shape, generator=rng).to(device)[:, 2 : 2 + A]


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", CELLS)
def test_step_and_backward_equal_the_differentiable_step(name, device):
    cell = CELLS[name]
    sums = drawn(BLOCKS * H, device=device).contiguous()
    before, kept_before = drawn(H, device=device), drawn(cell.inner_blocks * H, device=device)
    h, keep = drawn(H, device=device), drawn(cell.inner_blocks * H, device=device)
    inner_before = kept_before[..., :H] if cell.inner_blocks else torch.zeros_like(before)
    entered, was, c = (part.detach().clone().requires_grad_() for part in (sums, before, inner_before))
    expected, inner_wanted = cell.step(entered, was, c)

    cell.forward(sums, h, keep, before, kept_before)
    assert_close(h, expected.detach(), rtol=1e-5, atol=1e-5)
    if cell.inner_blocks:
        assert_close(keep[..., :H], inner_wanted.detach(), rtol=1e-5, atol=1e-5)

    by_h, by_inner = drawn(H, device=device), drawn(H, device=device).clone()
    requested = (expected * by_h).sum() + ((inner_wanted * by_inner).sum() if cell.inner_blocks else 0)
    by_sums, by_was, by_c = torch.autograd.grad(requested, (entered, was, c), allow_unused=True)
    out = drawn(BLOCKS * H, device=device)
    straight = cell.backward(sums, keep, before, kept_before, by_h, by_inner, out)
    assert_close(out, by_sums, rtol=1e-5, atol=1e-5)
    assert (straight is None) == (by_was is None)
    if straight is not None:
        assert_close(straight, by_was, rtol=1e-5, atol=1e-5)
    if cell.inner_blocks:
        assert_close(by_inner, by_c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("columns", [8, 75])
@pytest.mark.parametrize("rows", [1, 40])
def test_products_of_slices(rows, columns, device):
    """With and without sums to add to, for aligned and unaligned sizes."""
    recurrent = module("recurrent")
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(G, rows + 2, 92, generator=rng).to(device)[:, 1 : 1 + rows, 4:84]
    weight = torch.randn(G, 80, columns, generator=rng).to(device)
    sums = torch.randn(G, rows, 2 * columns, generator=rng).to(device)
    expected = torch.bmm(x.double(), weight.double()).float()
    recurrent.product(x, weight, sums[..., :columns])
    assert_close(sums[..., :columns], expected, rtol=1e-5, atol=1e-5)
    changed = sums.clone()
    recurrent.product(x, weight, changed[..., columns:], sums[..., columns:])
    assert_close(changed[..., columns:], sums[..., columns:] + expected, rtol=1e-5, atol=1e-5)
    assert_close(changed[..., :columns], sums[..., :columns], rtol=0, atol=0)
