"""What lies between and after the products of experts on a GPU: each a single pass over the rows, there and back.

t tokens, k chosen, s = t k pairs which stand expert after expert, e experts, d width
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import ceil_div, kernel, launch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS, COLS = 32, 128
SLOTS, NARROW = 32, 32  # a tile of the sums of blocks


def gelu(x: Tensor, bias: Tensor | None, expert: Tensor) -> Tensor:
    """(s, d) GELU of x plus the bias (e, d) of each row's expert."""
    s, d = x.shape
    out = torch.empty_like(x)
    grid = (ceil_div(s, ROWS), ceil_div(d, COLS))
    launch(_gelu, grid, (x, _or(bias, x), expert, out), s, d, BIASED=bias is not None, ROWS=ROWS, COLS=COLS)
    return out


def gelu_back(
    x: Tensor, bias: Tensor | None, expert: Tensor, grad: Tensor, *, again: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradient of x in the memory of `grad`, for `by_expert` sums of that of the bias, `again` what `gelu` gave.

    Written in passing, it need not be kept from the way there.
    """
    s, d = x.shape
    sums, hidden = _sums(bias, s), torch.empty_like(x) if again else None
    launch(_gelu_back, (ceil_div(s, ROWS), ceil_div(d, COLS)),
        (x, _or(bias, x), expert, grad, _or(sums, x), _or(hidden, x)), s, d,
        BIASED=bias is not None, AGAIN=again, ROWS=ROWS, COLS=COLS,
    )  # fmt: skip
    return grad, sums, hidden


def combine(y: Tensor, bias: Tensor | None, gates: Tensor | None, expert: Tensor, place: Tensor, tokens: int) -> Tensor:
    """(t, d) sum_j gate_j (y_j + bias_j) over the pairs of each token, with y (s, d) by place; no gates: all one."""
    s, d = y.shape
    out = y.new_empty(tokens, d)
    grid = (ceil_div(tokens, ROWS), ceil_div(d, COLS))
    launch(_combine, grid,
        (y, _or(bias, y), _or(gates, y), expert, place, out), tokens, d,
        K=s // tokens, BIASED=bias is not None, GATED=gates is not None, ROWS=ROWS, COLS=COLS,
    )  # fmt: skip
    return out


def combine_back(
    y: Tensor, bias: Tensor | None, gates: Tensor, expert: Tensor, order: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients of y and the gates (t, k), and between them for `by_expert` sums of that of the bias."""
    (s, d), (t, k) = y.shape, gates.shape
    out, sums, by_gates = torch.empty_like(y), _sums(bias, s), torch.empty_like(gates)
    launch(_combine_back, (ceil_div(s, ROWS),),
        (y, _or(bias, y), gates, expert, order, grad, out, _or(sums, y), by_gates), s, t, d,
        K=k, BIASED=bias is not None, ROWS=ROWS, COLS=COLS,
    )  # fmt: skip
    return out, sums, by_gates


def by_expert(sums: Tensor, bias: Tensor, more: Tensor, other: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of two biases (e, d) from their sums, always added up in the same order."""
    out, second = torch.empty_like(bias), torch.empty_like(other)
    (e, d), wide = bias.shape, other.shape[1]
    launch(
        _expert_sums, (e, ceil_div(d, NARROW) + ceil_div(wide, NARROW)), (sums, out, more, second, ends), d, wide,
        ROWS=ROWS, SLOTS=SLOTS, COLS=NARROW,
    )  # fmt: skip
    return out, second


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel is given some tensor in each place, also where it looks at none."""
    return other if tensor is None else tensor


def _sums(bias: Tensor | None, s: int) -> Tensor | None:
    """Room for a sum of each block and each expert in it: the sum of block b and expert j stands at b + j.

    Pairs stand expert after expert, so no two share a place, and the sums of one expert lie side by side.
    """
    if bias is None:
        return None
    return torch.empty(ceil_div(s, ROWS) + len(bias), bias.shape[1], dtype=torch.float32, device=bias.device)


@kernel
def _store_sums(values, mine, expert, sums, block, s, d, cols, ROWS: tl.constexpr):
    """The rows of a block added up for each expert that has some there."""
    first = tl.load(expert + block * ROWS).to(tl.int32)
    last = tl.load(expert + tl.minimum(block * ROWS + ROWS, s) - 1).to(tl.int32)
    for j in range(first, last + 1):
        total = tl.sum(tl.where((mine == j)[:, None], values, 0.0), 0)
        tl.store(sums + (block + j) * d + cols, total, mask=cols < d)


@kernel
def _expert_sums(sums, out, more, second, ends, d, wide, ROWS: tl.constexpr, SLOTS: tl.constexpr, COLS: tl.constexpr):
    """One program an expert and a stretch of columns, those of the second bias after those of the first."""
    j, stretch = tl.program_id(0), tl.program_id(1)
    left = tl.cdiv(d, COLS)
    if stretch < left:
        _add_up(sums, out, ends, j, stretch, d, ROWS, SLOTS, COLS)
    else:
        _add_up(more, second, ends, j, stretch - left, wide, ROWS, SLOTS, COLS)


@kernel
def _add_up(sums, out, ends, j, stretch, d, ROWS: tl.constexpr, SLOTS: tl.constexpr, COLS: tl.constexpr):
    cols = stretch * COLS + tl.arange(0, COLS)
    begin = tl.load(ends + j - 1, mask=j > 0, other=0)
    end = tl.load(ends + j)
    total = tl.zeros((SLOTS, COLS), tl.float32)
    past = tl.where(end > begin, (end - 1) // ROWS + j + 1, 0)
    for slot in range(begin // ROWS + j, past, SLOTS):
        here = (slot + tl.arange(0, SLOTS))[:, None].to(tl.int64)
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
def _gelu_back(
    x, bias, expert, grad, sums, hidden, s, d,
    BIASED: tl.constexpr, AGAIN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    row, cols = block * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    at, real = row[:, None] * d + cols[None, :], (row < s)[:, None] & (cols < d)[None, :]
    mine = tl.load(expert + row, mask=row < s, other=-1)
    v = tl.load(x + at, mask=real, other=0).to(tl.float32)
    if BIASED:
        v += tl.load(bias + mine[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
    below = 0.5 + 0.5 * tl.erf(v * 0.7071067811865476)
    if AGAIN:
        tl.store(hidden + at, v * below, mask=real)
    slope = below + v * 0.3989422804014327 * tl.exp(-0.5 * v * v)
    by = tl.load(grad + at, mask=real, other=0).to(tl.float32) * slope
    tl.store(grad + at, by, mask=real)
    if BIASED:
        _store_sums(by, mine, expert, sums, block, s, d, cols, ROWS)


@kernel
def _combine(
    y, bias, gates, expert, place, out, t, d,
    K: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    real = (row < t)[:, None] & (cols < d)[None, :]
    total = tl.zeros((ROWS, COLS), tl.float32)
    for j in tl.static_range(K):
        there = tl.load(place + j * t + row, mask=row < t, other=0)
        v = tl.load(y + there[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        if BIASED:
            mine = tl.load(expert + there, mask=row < t, other=0)
            v += tl.load(bias + mine[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        if GATED:
            v *= tl.load(gates + row * K + j, mask=row < t, other=0).to(tl.float32)[:, None]
        total += v
    tl.store(out + row[:, None] * d + cols[None, :], total, mask=real)


@kernel
def _combine_back(
    y, bias, gates, expert, order, grad, out, sums, by_gates, s, t, d,
    K: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """One program a block of places, all columns, for a gate takes part in all."""
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
