"""Kernels of one LSTM or GRU step after its matrix products: one pass forward, one pass backward.

a rows of a step, g directions, h hidden units. Every tensor is (g, a, ..) with contiguous rows; it may be a slice of a
longer tensor.
"""

from typing import Any

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.core.kernels import ceil_div, kernel, launch

DTYPES = (torch.float32,)
SIZE = 128


def lstm(sums: Tensor, h: Tensor, inner: Tensor, inner_before: Tensor) -> None:
    """Turn the sums (blocks g, i, f, o) into gates in place; write h' to `h`, and c' and tanh c' to `inner`."""
    _launch(_lstm, h, sums, h, inner, inner_before)


def lstm_backward(
    gates: Tensor, inner: Tensor, inner_before: Tensor, grad: Tensor, grad_inner: Tensor, out: Tensor
) -> None:
    """Write the gradient of the sums to `out`, given that of h'; `grad_inner`, that of c', becomes that of c."""
    _launch(_lstm_backward, grad, gates, inner, inner_before, grad, grad_inner, out)


def gru(sums: Tensor, h: Tensor, h_before: Tensor) -> None:
    """Turn the sums (blocks u, r, z, n) into gates in place, u unchanged; write h' to `h`."""
    _launch(_gru, h, sums, h, h_before)


def gru_backward(gates: Tensor, h_before: Tensor, grad: Tensor, out: Tensor) -> Tensor:
    """Write the gradient of the sums to `out`, given that of h'; return the direct gradient of h."""
    direct = torch.empty_like(grad, memory_format=torch.contiguous_format)
    _launch(_gru_backward, grad, gates, h_before, grad, out, direct)
    return direct


def _launch(function: Any, h: Tensor, *tensors: Tensor) -> None:
    """One program per row of a direction and block of units; kernels take the stride of directions per tensor."""
    g, a, width = h.shape
    strides = (tensor.stride(0) for tensor in tensors)
    launch(function, (g * a, ceil_div(width, SIZE)), tensors, a, width, *strides, SIZE=SIZE)


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
