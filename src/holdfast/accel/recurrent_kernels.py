"""Kernels of one LSTM or GRU step: its matrix products, and one pass forward and one backward after them.

a rows of a step, g directions, h hidden units, k rows and n columns of a matrix. Every tensor is (g, a, ..) and may be
a slice of a longer one; kernels of cells need contiguous rows.
"""

import math
from typing import Any

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.accel.registry import ceil_div, kernel, launch, power_of_two
from holdfast.ops.cells import GRU, LSTM

DTYPES = (torch.float32,)
SIZE = 128
# tiles of a product, measured on an H200: a step has few rows, so that narrow tiles occupy more of the GPU
MAX_ROWS, COLS, DEPTH, WARPS, STAGES = 32, 16, 64, 2, 4
VECTOR = 4  # numbers that are read at once, where all sizes are multiples of it


def product(x: Tensor, weight: Tensor, out: Tensor, add: Tensor | None = None) -> None:
    """Write x (g, a, k) times weight (g, k, n), plus `add`, to `out` (g, a, n); `add` and `out` may be the same.

    Every number is split into two of lower precision for the tensor cores; the result is as exact as one in fp32.
    """
    (g, a, k), n = x.shape, weight.shape[2]
    tensors = (x, weight, out if add is None else add, out)
    assert all(tensor.stride(2) == 1 or tensor.shape[2] == 1 for tensor in tensors), "columns must be contiguous"
    sizes = (k, n, *(stride for tensor in tensors for stride in tensor.stride()[:2]))
    unit = math.gcd(VECTOR, *sizes)
    rows = min(MAX_ROWS, max(16, power_of_two(a)))
    launch(_product, (ceil_div(n, COLS), ceil_div(a, rows), g), tensors, a, *(size // unit for size in sizes),
        UNIT=unit, ADD=add is not None, ROWS=rows, COLS=COLS, DEPTH=DEPTH, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def lstm(sums: Tensor, h: Tensor, inner: Tensor, h_before: Tensor, inner_before: Tensor) -> None:
    """Compute `ops.cells.LSTM.forward` in one pass."""
    _launch(_lstm, h, sums, h, inner, inner_before)


def lstm_backward(
    gates: Tensor, inner: Tensor, h_before: Tensor, inner_before: Tensor, grad: Tensor, grad_inner: Tensor, out: Tensor
) -> None:
    """Compute `ops.cells.LSTM.backward` in one pass."""
    _launch(_lstm_backward, grad, gates, inner, inner_before, grad, grad_inner, out)


def gru(sums: Tensor, h: Tensor, inner: Tensor, h_before: Tensor, inner_before: Tensor) -> None:
    """Compute `ops.cells.GRU.forward` in one pass."""
    _launch(_gru, h, sums, h, h_before)


def gru_backward(
    gates: Tensor, inner: Tensor, h_before: Tensor, inner_before: Tensor, grad: Tensor, grad_inner: Tensor, out: Tensor
) -> Tensor:
    """Compute `ops.cells.GRU.backward` in one pass."""
    direct = torch.empty_like(grad, memory_format=torch.contiguous_format)
    _launch(_gru_backward, grad, gates, h_before, grad, out, direct)
    return direct


CELLS = {LSTM: (lstm, lstm_backward), GRU: (gru, gru_backward)}


def _launch(function: Any, h: Tensor, *tensors: Tensor) -> None:
    """One program per row of a direction and block of units; kernels take the stride of directions per tensor."""
    g, a, width = h.shape
    strides = (tensor.stride(0) for tensor in tensors)
    launch(function, (g * a, ceil_div(width, SIZE)), tensors, a, width, *strides, SIZE=SIZE)


@kernel
def _product(
    x, weight, add, out, a, k, n, x_g, x_a, weight_g, weight_k, add_g, add_a, out_g, out_a,
    UNIT: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One program per tile of columns and rows of a direction; sizes and strides are counted in units."""
    k, n, x_a, weight_k = k * UNIT, n * UNIT, x_a * UNIT, weight_k * UNIT
    x_g, weight_g, add_g, add_a = x_g * UNIT, weight_g * UNIT, add_g * UNIT, add_a * UNIT
    out_g, out_a = out_g * UNIT, out_a * UNIT
    g = tl.program_id(2).to(tl.int64)
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = (tl.program_id(0) * COLS + tl.arange(0, COLS))[None, :]
    depth = tl.arange(0, DEPTH)
    inside = (rows < a) & (cols < n)
    total = tl.zeros((ROWS, COLS), tl.float32)
    if ADD:
        total += tl.load(add + g * add_g + rows * add_a + cols, mask=inside, other=0)
    for first in range(0, k, DEPTH):
        across, down = (first + depth)[None, :], (first + depth)[:, None]
        left = tl.load(x + g * x_g + rows * x_a + across, mask=(rows < a) & (across < k), other=0)
        right = tl.load(weight + g * weight_g + down * weight_k + cols, mask=(down < k) & (cols < n), other=0)
        total = tl.dot(left, right, total, input_precision="tf32x3")
    tl.store(out + g * out_g + rows * out_a + cols, total, mask=inside)


@kernel
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@kernel
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@kernel
def _lstm(sums, h, inner, before, a, width, sums_g, h_g, inner_g, before_g, SIZE: tl.constexpr):
    g, row = (tl.program_id(0) // a).to(tl.int64), tl.program_id(0) % a
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = i < width
    at = sums + g * sums_g + row * 4 * width + i
    new = _tanh(tl.load(at, mask=inside))
    enter = _sigmoid(tl.load(at + width, mask=inside))
    forget = _sigmoid(tl.load(at + 2 * width, mask=inside))
    leave = _sigmoid(tl.load(at + 3 * width, mask=inside))
    c = enter * new + forget * tl.load(before + g * before_g + row * 2 * width + i, mask=inside)
    squashed = _tanh(c)
    tl.store(at, new, mask=inside)
    tl.store(at + width, enter, mask=inside)
    tl.store(at + 2 * width, forget, mask=inside)
    tl.store(at + 3 * width, leave, mask=inside)
    to = inner + g * inner_g + row * 2 * width + i
    tl.store(to, c, mask=inside)
    tl.store(to + width, squashed, mask=inside)
    tl.store(h + g * h_g + row * width + i, leave * squashed, mask=inside)


@kernel
def _lstm_backward(
    gates, inner, before, grad, grad_inner, out, a, width, gates_g, inner_g, before_g, grad_g, grad_inner_g, out_g,
    SIZE: tl.constexpr,
):  # fmt: skip
    g, row = (tl.program_id(0) // a).to(tl.int64), tl.program_id(0) % a
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = i < width
    at = gates + g * gates_g + row * 4 * width + i
    new, enter = tl.load(at, mask=inside), tl.load(at + width, mask=inside)
    forget, leave = tl.load(at + 2 * width, mask=inside), tl.load(at + 3 * width, mask=inside)
    squashed = tl.load(inner + g * inner_g + (row * 2 + 1) * width + i, mask=inside)
    c = tl.load(before + g * before_g + row * 2 * width + i, mask=inside)
    by_h = tl.load(grad + g * grad_g + row * width + i, mask=inside)
    carried = grad_inner + g * grad_inner_g + row * width + i
    by_c = tl.load(carried, mask=inside) + by_h * leave * (1 - squashed * squashed)
    to = out + g * out_g + row * 4 * width + i
    tl.store(to, by_c * enter * (1 - new * new), mask=inside)
    tl.store(to + width, by_c * new * enter * (1 - enter), mask=inside)
    tl.store(to + 2 * width, by_c * c * forget * (1 - forget), mask=inside)
    tl.store(to + 3 * width, by_h * squashed * leave * (1 - leave), mask=inside)
    tl.store(carried, by_c * forget, mask=inside)


@kernel
def _gru(sums, h, before, a, width, sums_g, h_g, before_g, SIZE: tl.constexpr):
    g, row = (tl.program_id(0) // a).to(tl.int64), tl.program_id(0) % a
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = i < width
    at = sums + g * sums_g + row * 4 * width + i
    reset = _sigmoid(tl.load(at + width, mask=inside))
    stay = _sigmoid(tl.load(at + 2 * width, mask=inside))
    new = _tanh(tl.load(at + 3 * width, mask=inside) + reset * tl.load(at, mask=inside))
    was = tl.load(before + g * before_g + row * width + i, mask=inside)
    tl.store(at + width, reset, mask=inside)
    tl.store(at + 2 * width, stay, mask=inside)
    tl.store(at + 3 * width, new, mask=inside)
    tl.store(h + g * h_g + row * width + i, new + stay * (was - new), mask=inside)


@kernel
def _gru_backward(
    gates, before, grad, out, direct, a, width, gates_g, before_g, grad_g, out_g, direct_g, SIZE: tl.constexpr
):
    g, row = (tl.program_id(0) // a).to(tl.int64), tl.program_id(0) % a
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = i < width
    at = gates + g * gates_g + row * 4 * width + i
    share, reset = tl.load(at, mask=inside), tl.load(at + width, mask=inside)
    stay, new = tl.load(at + 2 * width, mask=inside), tl.load(at + 3 * width, mask=inside)
    was = tl.load(before + g * before_g + row * width + i, mask=inside)
    by_h = tl.load(grad + g * grad_g + row * width + i, mask=inside)
    by_was = by_h * stay
    by_new = (by_h - by_was) * (1 - new * new)
    to = out + g * out_g + row * 4 * width + i
    tl.store(to, by_new * reset, mask=inside)
    tl.store(to + width, by_new * reset * (1 - reset) * share, mask=inside)
    tl.store(to + 2 * width, by_was * (1 - stay) * (was - new), mask=inside)
    tl.store(to + 3 * width, by_new, mask=inside)
    tl.store(direct + g * direct_g + row * width + i, by_was, mask=inside)
