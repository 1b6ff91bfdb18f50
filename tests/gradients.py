"""Comparison of two implementations in values and gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.testing import assert_close


def assert_same(
    actual: Tensor, expected: Tensor, leaves: Iterable[Tensor], *, tolerance: float | None = None, gradients: float = 1
) -> None:
    """Compare two tensors, then their gradients at the leaves that need one, for random weights of the entries.

    `tolerance` is relative and absolute, by default that of `assert_close`; for gradients it is multiplied.
    """
    assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    leaves, close = [leaf for leaf in leaves if leaf.requires_grad], tolerance and tolerance * gradients
    weights = torch.randn(actual.shape, generator=torch.Generator().manual_seed(1), dtype=actual.dtype)
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    both = (torch.autograd.grad(each, leaves, weights.to(each.device), **options) for each in (actual, expected))
    for a, b in zip(*both, strict=True):
        assert_close(a, b, rtol=close, atol=close)
