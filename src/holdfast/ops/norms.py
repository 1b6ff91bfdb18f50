"""Normalisation with what follows it."""

from torch import Tensor, nn
from torch.nn import functional as F


def normed(norm: nn.Module, x: Tensor, *, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """Return relu(norm(x) + residual), relu((x - mean) / std weight + bias + residual), for images (b, c, h, w)."""
    out = norm(x) if residual is None else norm(x) + residual
    return F.relu(out) if relu else out
