"""In-place cell steps equal the differentiable step and its gradient, on every device."""

import pytest
import torch
from torch.testing import assert_close

from holdfast.nn.recurrent.cells import BLOCKS, CELLS

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
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
