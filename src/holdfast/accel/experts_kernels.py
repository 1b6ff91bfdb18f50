"""Kernels between and after the matrix products of experts: one pass over the rows each, forward and backward.

t tokens, k chosen experts, s = t k pairs of a token and an expert, sorted by expert, e experts, d width
"""

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.accel.registry import ceil_div, kernel, launch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS, COLS = 32, 128


def gelu(x: Tensor, bias: Tensor, expert: Tensor) -> Tensor:
    """Return GELU(x + bias[expert]) for rows x (s, d), biases (e, d) and the expert of each row (s,)."""
    (s, d), out = x.shape, torch.empty_like(x)
    launch(_gelu, (ceil_div(s, ROWS), ceil_div(d, COLS)), (x, bias, expert, out), s, d, ROWS=ROWS, COLS=COLS)
    return out


def gelu_backward(x: Tensor, bias: Tensor, expert: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x in the memory of `grad`, and the output of `gelu`, which then need not be saved."""
    (s, d), hidden = x.shape, torch.empty_like(x)
    grid = (ceil_div(s, ROWS), ceil_div(d, COLS))
    launch(_gelu_backward, grid, (x, bias, expert, grad, hidden), s, d, ROWS=ROWS, COLS=COLS)
    return grad, hidden


def combine(y: Tensor, bias: Tensor, gates: Tensor, expert: Tensor, position: Tensor) -> Tensor:
    """Return sum_j gate_j (y_j + bias_j) over the pairs of each token (t, d); y (s, d) is sorted, gates are (t, k)."""
    (t, k), d = gates.shape, y.shape[1]
    out = y.new_empty(t, d)
    grid = (ceil_div(t, ROWS), ceil_div(d, COLS))
    launch(_combine, grid, (y, bias, gates, expert, position, out), t, d, K=k, ROWS=ROWS, COLS=COLS)
    return out


def combine_backward(
    y: Tensor, bias: Tensor, gates: Tensor, expert: Tensor, order: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of y (s, d) and of the gates (t, k)."""
    (s, d), (t, k) = y.shape, gates.shape
    out, by_gates = torch.empty_like(y), torch.empty_like(gates)
    tensors = (y, bias, gates, expert, order, grad, out, by_gates)
    launch(_combine_backward, (ceil_div(s, ROWS),), tensors, s, t, d, K=k, ROWS=ROWS, COLS=COLS)
    return out, by_gates


@kernel
def _biased(x, bias, expert, row, known, cols, d):
    """Return rows x + bias[expert] in fp32, with zeros where `known` is false."""
    real = known[:, None] & (cols < d)[None, :]
    mine = tl.load(expert + row, mask=known, other=0)
    value = tl.load(x + row[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
    return value + tl.load(bias + mine[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)


@kernel
def _gelu(x, bias, expert, out, s, d, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    at, real = row[:, None] * d + cols[None, :], (row < s)[:, None] & (cols < d)[None, :]
    v = _biased(x, bias, expert, row, row < s, cols, d)
    tl.store(out + at, v * (0.5 + 0.5 * tl.erf(v * 0.7071067811865476)), mask=real)


@kernel
def _gelu_backward(x, bias, expert, grad, hidden, s, d, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    at, real = row[:, None] * d + cols[None, :], (row < s)[:, None] & (cols < d)[None, :]
    v = _biased(x, bias, expert, row, row < s, cols, d)
    # GELU is v times the normal distribution function, its slope that function plus v times the density
    below = 0.5 + 0.5 * tl.erf(v * 0.7071067811865476)
    tl.store(hidden + at, v * below, mask=real)
    slope = below + v * 0.3989422804014327 * tl.exp(-0.5 * v * v)
    tl.store(grad + at, tl.load(grad + at, mask=real, other=0).to(tl.float32) * slope, mask=real)


@kernel
def _combine(y, bias, gates, expert, position, out, t, d, K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    # pairs are numbered by choice, then by token; `position` is where the sort has put them
    for j in tl.static_range(K):
        at = tl.load(position + j * t + row, mask=row < t, other=0)
        gate = tl.load(gates + row * K + j, mask=row < t, other=0).to(tl.float32)
        total += gate[:, None] * _biased(y, bias, expert, at, row < t, cols, d)
    tl.store(out + row[:, None] * d + cols[None, :], total, mask=(row < t)[:, None] & (cols < d)[None, :])


@kernel
def _combine_backward(
    y, bias, gates, expert, order, grad, out, by_gates, s, t, d, K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """One program per block of pairs and all columns, since the gradient of a gate sums over all columns."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    pair = tl.load(order + row, mask=row < s, other=0)
    token, choice = pair % t, pair // t
    gate = tl.load(gates + token * K + choice, mask=row < s, other=0).to(tl.float32)
    along = tl.zeros((ROWS,), tl.float32)
    for left in range(0, d, COLS):
        cols = left + tl.arange(0, COLS)
        real = (row < s)[:, None] & (cols < d)[None, :]
        g = tl.load(grad + token[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        along += tl.sum(g * _biased(y, bias, expert, row, row < s, cols, d), 1)
        tl.store(out + row[:, None] * d + cols[None, :], gate[:, None] * g, mask=real)
    tl.store(by_gates + token * K + choice, along, mask=row < s)
