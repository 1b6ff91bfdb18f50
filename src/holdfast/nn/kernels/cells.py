"""One step of an LSTM or a GRU on a GPU after its products: a single pass forward, a single pass back.

a rows of a step, g directions, h hidden units. Every tensor is (g, a, ..) with rows that lie without gaps, as a slice
of a longer one may.
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import kernel
from holdfast.nn.kernels.launch import launch, pieces

TYPES = (torch.float32,)
SIZE = 128


def lstm(sums: Tensor, h: Tensor, keep: Tensor, kept_before: Tensor) -> None:
    """The sums (blocks g, i, f, o) become the gates; the next state goes to `h` and to `keep`, c' and tanh c'."""
    parts = (sums, h, keep, kept_before)
    launch(_lstm, _grid(h), parts, *h.shape[1:], *(part.stride(0) for part in parts), SIZE=SIZE)


def lstm_back(gates: Tensor, keep: Tensor, kept_before: Tensor, grad: Tensor, inner: Tensor, out: Tensor) -> None:
    """From the gradient of h' to that of the sums in `out`; `inner`, that of c', becomes that of c."""
    parts = (gates, keep, kept_before, grad, inner, out)
    launch(_lstm_back, _grid(grad), parts, *grad.shape[1:], *(part.stride(0) for part in parts), SIZE=SIZE)


def gru(sums: Tensor, h: Tensor, h_before: Tensor) -> None:
    """The sums (blocks u, r, z, n) become the gates, u stays; the next state goes to `h`."""
    parts = (sums, h, h_before)
    launch(_gru, _grid(h), parts, *h.shape[1:], *(part.stride(0) for part in parts), SIZE=SIZE)


def gru_back(gates: Tensor, h_before: Tensor, grad: Tensor, out: Tensor) -> Tensor:
    """From the gradient of h' to that of the sums in `out`; what goes to h straight is returned."""
    straight = torch.empty_like(grad, memory_format=torch.contiguous_format)
    parts = (gates, h_before, grad, out, straight)
    launch(_gru_back, _grid(grad), parts, *grad.shape[1:], *(part.stride(0) for part in parts), SIZE=SIZE)
    return straight


def _grid(h: Tensor) -> tuple[int, int]:
    g, a, width = h.shape
    return g * a, pieces(width, SIZE)


@kernel
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@kernel
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@kernel
def _lstm(sums, h, keep, before, a, width, sums_g, h_g, keep_g, before_g, SIZE: tl.constexpr):
    """One program a row of a direction and a block of units."""
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
    to = keep + g * keep_g + row * 2 * width + i
    tl.store(to, c, mask=inside)
    tl.store(to + width, squashed, mask=inside)
    tl.store(h + g * h_g + row * width + i, leave * squashed, mask=inside)


@kernel
def _lstm_back(
    gates, keep, before, grad, inner, out, a, width, gates_g, keep_g, before_g, grad_g, inner_g, out_g,
    SIZE: tl.constexpr,
):  # fmt: skip
    g, row = (tl.program_id(0) // a).to(tl.int64), tl.program_id(0) % a
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = i < width
    at = gates + g * gates_g + row * 4 * width + i
    new, enter = tl.load(at, mask=inside), tl.load(at + width, mask=inside)
    forget, leave = tl.load(at + 2 * width, mask=inside), tl.load(at + 3 * width, mask=inside)
    squashed = tl.load(keep + g * keep_g + (row * 2 + 1) * width + i, mask=inside)
    c = tl.load(before + g * before_g + row * 2 * width + i, mask=inside)
    by_h = tl.load(grad + g * grad_g + row * width + i, mask=inside)
    carried = inner + g * inner_g + row * width + i
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
def _gru_back(
    gates, before, grad, out, straight, a, width, gates_g, before_g, grad_g, out_g, straight_g, SIZE: tl.constexpr
):
    g, row = (tl.program_id(0) // a).to(tl.int64), tl.program_id(0) % a
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = i < width
    at = gates + g * gates_g + row * 4 * width + i
    share, reset = tl.load(at, mask=inside), tl.load(at + width, mask=inside)
    stay, new = tl.load(at + 2 * width, mask=inside), tl.load(at + 3 * width, mask=inside)
    was = tl.load(before + g * before_g + row * width + i, mask=inside)
    by_h = tl.load(grad + g * grad_g + row * width + i, mask=inside)
    kept = by_h * stay
    by_new = (by_h - kept) * (1 - new * new)
    to = out + g * out_g + row * 4 * width + i
    tl.store(to, by_new * reset, mask=inside)
    tl.store(to + width, by_new * reset * (1 - reset) * share, mask=inside)
    tl.store(to + 2 * width, kept * (1 - stay) * (was - new), mask=inside)
    tl.store(to + 3 * width, by_new, mask=inside)
    tl.store(straight + g * straight_g + row * width + i, kept, mask=inside)
