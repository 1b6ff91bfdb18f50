"""Kernels between and after the matrix products of experts: one pass over the rows each, forward and backward.

t tokens, k chosen experts, s = t k pairs of a token and an expert, sorted by expert, e experts, d width
"""

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.accel.registry import ceil_div, kernel, launch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS, COLS = 32, 128
SUM_ROWS, SUM_COLS = 32, 32  # a tile of the block sums


def gelu(x: Tensor, bias: Tensor | None, expert: Tensor) -> Tensor:
    """Return GELU(x + bias[expert]) for rows x (s, d), biases (e, d) and the expert of each row (s,)."""
    s, d = x.shape
    out = torch.empty_like(x)
    grid = (ceil_div(s, ROWS), ceil_div(d, COLS))
    launch(_gelu, grid, (x, _or(bias, x), expert, out), s, d, BIASED=bias is not None, ROWS=ROWS, COLS=COLS)
    return out


def gelu_backward(
    x: Tensor, bias: Tensor | None, expert: Tensor, grad: Tensor, *, recompute: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradient of x in the memory of `grad`, block sums of the bias gradient for `bias_gradients`, and the
    output of `gelu` with `recompute`, which then need not be saved for the backward pass."""
    s, d = x.shape
    sums, hidden = _block_sums(bias, s), torch.empty_like(x) if recompute else None
    launch(_gelu_backward, (ceil_div(s, ROWS), ceil_div(d, COLS)),
        (x, _or(bias, x), expert, grad, _or(sums, x), _or(hidden, x)), s, d,
        BIASED=bias is not None, RECOMPUTE=recompute, ROWS=ROWS, COLS=COLS,
    )  # fmt: skip
    return grad, sums, hidden


def combine(
    y: Tensor, bias: Tensor | None, gates: Tensor | None, expert: Tensor, position: Tensor, tokens: int
) -> Tensor:
    """Return sum_j gate_j (y_j + bias_j) over the pairs of each token (t, d); y (s, d) is sorted, None gates are 1."""
    s, d = y.shape
    out = y.new_empty(tokens, d)
    grid = (ceil_div(tokens, ROWS), ceil_div(d, COLS))
    launch(_combine, grid,
        (y, _or(bias, y), _or(gates, y), expert, position, out), tokens, d,
        K=s // tokens, BIASED=bias is not None, GATED=gates is not None, ROWS=ROWS, COLS=COLS,
    )  # fmt: skip
    return out


def combine_backward(
    y: Tensor, bias: Tensor | None, gates: Tensor, expert: Tensor, order: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the gradient of y, block sums of the bias gradient for `bias_gradients`, and that of the gates (t, k)."""
    (s, d), (t, k) = y.shape, gates.shape
    out, sums, by_gates = torch.empty_like(y), _block_sums(bias, s), torch.empty_like(gates)
    launch(_combine_backward, (ceil_div(s, ROWS),),
        (y, _or(bias, y), gates, expert, order, grad, out, _or(sums, y), by_gates), s, t, d,
        K=k, BIASED=bias is not None, ROWS=ROWS, COLS=COLS,
    )  # fmt: skip
    return out, sums, by_gates


def bias_gradients(
    first_sums: Tensor, first: Tensor, second_sums: Tensor, second: Tensor, ends: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of two biases (e, d) from their block sums, always added in the same order."""
    by_first, by_second = torch.empty_like(first), torch.empty_like(second)
    (e, d), wide = first.shape, second.shape[1]
    launch(
        _bias_gradients, (e, ceil_div(d, SUM_COLS) + ceil_div(wide, SUM_COLS)),
        (first_sums, by_first, second_sums, by_second, ends), d, wide,
        ROWS=ROWS, SUM_ROWS=SUM_ROWS, COLS=SUM_COLS,
    )  # fmt: skip
    return by_first, by_second


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """Return a tensor in any case: a kernel needs an argument also where it reads none."""
    return other if tensor is None else tensor


def _block_sums(bias: Tensor | None, s: int) -> Tensor | None:
    """Allocate one sum per block of rows and expert in it; the sum of block b and expert j is row b + j.

    Pairs are sorted by expert, so every sum has a row of its own, and the sums of one expert are adjacent.
    """
    if bias is None:
        return None
    return torch.empty(ceil_div(s, ROWS) + len(bias), bias.shape[1], dtype=torch.float32, device=bias.device)


@kernel
def _store_sums(values, mine, expert, sums, block, s, d, cols, ROWS: tl.constexpr):
    """Add up the rows of a block for every expert that occurs in it."""
    first = tl.load(expert + block * ROWS).to(tl.int32)
    last = tl.load(expert + tl.minimum(block * ROWS + ROWS, s) - 1).to(tl.int32)
    for j in range(first, last + 1):
        total = tl.sum(tl.where((mine == j)[:, None], values, 0.0), 0)
        tl.store(sums + (block + j) * d + cols, total, mask=cols < d)


@kernel
def _bias_gradients(
    first_sums, by_first, second_sums, by_second, ends, d, wide,
    ROWS: tl.constexpr, SUM_ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """One program per expert and chunk of columns; chunks of the second bias follow those of the first."""
    j, chunk = tl.program_id(0), tl.program_id(1)
    left = tl.cdiv(d, COLS)
    if chunk < left:
        _add_up(first_sums, by_first, ends, j, chunk, d, ROWS, SUM_ROWS, COLS)
    else:
        _add_up(second_sums, by_second, ends, j, chunk - left, wide, ROWS, SUM_ROWS, COLS)


@kernel
def _add_up(sums, out, ends, j, chunk, d, ROWS: tl.constexpr, SUM_ROWS: tl.constexpr, COLS: tl.constexpr):
    cols = chunk * COLS + tl.arange(0, COLS)
    begin = tl.load(ends + j - 1, mask=j > 0, other=0)
    end = tl.load(ends + j)
    total = tl.zeros((SUM_ROWS, COLS), tl.float32)
    past = tl.where(end > begin, (end - 1) // ROWS + j + 1, 0)
    for row in range(begin // ROWS + j, past, SUM_ROWS):
        here = (row + tl.arange(0, SUM_ROWS))[:, None].to(tl.int64)
        total += tl.load(sums + here * d + cols[None, :], mask=(here < past) & (cols < d)[None, :], other=0)
    tl.store(out + j * d + cols, tl.sum(total, 0), mask=cols < d)


@kernel
def _gelu(x, bias, expert, out, s, d, BIASED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    at, real = row[:, None] * d + cols[None, :], (row < s)[:, None] & (cols < d)[None, :]
    v = tl.load(x + at, mask=real, other=0).to(tl.float32)
    if BIASED:
        mine = tl.load(expert + row, mask=row < s, other=0)
        v += tl.load(bias + mine[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
    tl.store(out + at, v * (0.5 + 0.5 * tl.erf(v * 0.7071067811865476)), mask=real)


@kernel
def _gelu_backward(
    x, bias, expert, grad, sums, hidden, s, d,
    BIASED: tl.constexpr, RECOMPUTE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    row, cols = block * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    at, real = row[:, None] * d + cols[None, :], (row < s)[:, None] & (cols < d)[None, :]
    mine = tl.load(expert + row, mask=row < s, other=-1)
    v = tl.load(x + at, mask=real, other=0).to(tl.float32)
    if BIASED:
        v += tl.load(bias + mine[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
    below = 0.5 + 0.5 * tl.erf(v * 0.7071067811865476)
    if RECOMPUTE:
        tl.store(hidden + at, v * below, mask=real)
    slope = below + v * 0.3989422804014327 * tl.exp(-0.5 * v * v)
    by = tl.load(grad + at, mask=real, other=0).to(tl.float32) * slope
    tl.store(grad + at, by, mask=real)
    if BIASED:
        _store_sums(by, mine, expert, sums, block, s, d, cols, ROWS)


@kernel
def _combine(
    y, bias, gates, expert, position, out, t, d,
    K: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    real = (row < t)[:, None] & (cols < d)[None, :]
    total = tl.zeros((ROWS, COLS), tl.float32)
    for j in tl.static_range(K):
        at = tl.load(position + j * t + row, mask=row < t, other=0)
        v = tl.load(y + at[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        if BIASED:
            mine = tl.load(expert + at, mask=row < t, other=0)
            v += tl.load(bias + mine[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        if GATED:
            v *= tl.load(gates + row * K + j, mask=row < t, other=0).to(tl.float32)[:, None]
        total += v
    tl.store(out + row[:, None] * d + cols[None, :], total, mask=real)


@kernel
def _combine_backward(
    y, bias, gates, expert, order, grad, out, sums, by_gates, s, t, d,
    K: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """One program per block of pairs and all columns, since the gradient of a gate sums over all columns."""
    block = tl.program_id(0).to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    pair = tl.load(order + row, mask=row < s, other=0)
    token, choice = pair % t, pair // t
    mine = tl.load(expert + row, mask=row < s, other=-1)
    gate = tl.load(gates + token * K + choice, mask=row < s, other=0).to(tl.float32)
    along = tl.zeros((ROWS,), tl.float32)
    for left in range(0, d, COLS):
        cols = left + tl.arange(0, COLS)
        real = (row < s)[:, None] & (cols < d)[None, :]
        g = tl.load(grad + token[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        v = tl.load(y + row[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        if BIASED:
            v += tl.load(bias + mine[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        along += tl.sum(g * v, 1)
        by = gate[:, None] * g
        tl.store(out + row[:, None] * d + cols[None, :], by, mask=real)
        if BIASED:
            _store_sums(by, mine, expert, sums, block, s, d, cols, ROWS)
    tl.store(by_gates + token * K + choice, along, mask=row < s)
