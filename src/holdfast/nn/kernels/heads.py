"""Softmax over slots and its sum over heads on a GPU: one pass over the scores forward, one over the weights backward.

h heads, b batch, m slots
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import kernel
from holdfast.nn.kernels.launch import launch, power_of_two

WIDEST = 16384  # a row of scores is held in registers
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def softmax_sum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(b, m) the sum over heads of the weights, and the weights (h, b, m) themselves."""
    heads, b, m = scores.shape
    weights, total = torch.empty_like(scores), scores.new_empty(b, m)
    launch(_forward, (b,), (scores, weights, total), heads, b, m, SIZE=power_of_two(m), num_warps=_warps(m))
    return total, weights


def gradient(weights: Tensor, grad: Tensor) -> Tensor:
    """(h, b, m) the gradient of the scores, from that of the sum over heads."""
    heads, b, m = weights.shape
    out = torch.empty_like(weights)
    launch(_backward, (b,), (weights, grad, out), heads, b, m, SIZE=power_of_two(m), num_warps=_warps(m))
    return out


def _warps(m: int) -> int:
    return min(8, max(1, power_of_two(m) // 256))


@kernel
def _forward(scores, weights, total, heads, b, m, SIZE: tl.constexpr):
    """One program a query."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    inside = i < m
    added = tl.zeros((SIZE,), tl.float32)
    for head in range(heads):
        at = (head * b + row) * m + i
        x = tl.load(scores + at, mask=inside, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - tl.max(x, 0))
        p = e / tl.sum(e, 0)
        tl.store(weights + at, p, mask=inside)
        added += p
    tl.store(total + row * m + i, added, mask=inside)


@kernel
def _backward(weights, grad, out, heads, b, m, SIZE: tl.constexpr):
    """One program a query: p (g - <p, g>) for each head, with the same g."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    inside = i < m
    g = tl.load(grad + row * m + i, mask=inside, other=0).to(tl.float32)
    for head in range(heads):
        at = (head * b + row) * m + i
        p = tl.load(weights + at, mask=inside, other=0).to(tl.float32)
        tl.store(out + at, p * (g - tl.sum(p * g, 0)), mask=inside)
