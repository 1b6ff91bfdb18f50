"""What a cosine router does with its few parameters on a GPU, there and back: one kernel in the place of a dozen.

d width, q width in which the cosine is taken, e experts, w = q + e or a few more, so that rows are of whole 16 bytes
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import ceil_div, kernel, launch, power_of_two

COLS, DEEP = 32, 32  # a tile of the weight on the way there
BAND, NARROW = 16, 64  # and on the way back: a program has a band of its rows
BLOCKS = 128  # sums at once


def whole(q: int, e: int) -> int:
    return 8 * ceil_div(q + e, 8)


def fold(weight: Tensor, bias: Tensor, directions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E W (e, d) and E b (e,) in fp32; W above E W (w, d), with rows of nothing below, and b (q,) in the narrow type.

    The weight W is (q, d), the bias b (q,), the directions E (e, q).
    """
    (q, d), e, device = weight.shape, len(directions), weight.device
    both, narrow_bias = (torch.empty(size, dtype=dtype, device=device) for size in ((whole(q, e), d), (q,)))
    folded, folded_bias = (torch.empty(size, dtype=torch.float32, device=device) for size in ((e, d), (e,)))
    launch(
        _fold, (ceil_div(d, COLS),), (weight, bias, directions, both, narrow_bias, folded, folded_bias),
        q, d, e, len(both) - q, SIZE=size_of(e), COLS=COLS, DEEP=DEEP,
    )  # fmt: skip
    return folded, folded_bias, both, narrow_bias


def unfold(
    weight: Tensor, bias: Tensor, directions: Tensor, log_scale: Tensor, sizes: Tensor, sums: Tensor, by_both: Tensor,
    largest: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of weight, bias, directions and the scale's logarithm.

    `by_both` is that of W above E W (w, d), `sums` (blocks, 2 e + q) are of blocks of tokens: <grad, scores> and the
    gradient of the dots by expert, and that of the query; `sizes` (e,) are the lengths of the directions.
    """
    (q, d), e = weight.shape, len(directions)
    outs = tuple(torch.empty_like(x) for x in (weight, bias, directions, log_scale))
    launch(
        _unfold, (ceil_div(q, BAND),), (weight, bias, directions, log_scale, sizes, sums, by_both, *outs),
        sums.shape[0], q, d, e, largest, SIZE=size_of(e), BAND=BAND, COLS=NARROW, BLOCKS=BLOCKS,
    )  # fmt: skip
    return outs  # pyright: ignore[reportReturnType]


def size_of(experts: int) -> int:
    """A power of two with room for the rows of nothing, and no less than a product of tiles takes."""
    return max(16, power_of_two(experts + 7))


@kernel
def _fold(
    weight, bias, directions, both, narrow_bias, folded, folded_bias, q, d, e, below,
    SIZE: tl.constexpr, COLS: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    i, cols = tl.arange(0, SIZE), tl.program_id(0) * COLS + tl.arange(0, COLS)
    total, along = tl.zeros((SIZE, COLS), tl.float32), tl.zeros((SIZE,), tl.float32)
    for top in range(0, q, DEEP):
        j = top + tl.arange(0, DEEP)
        inside, at = (j < q)[:, None] & (cols < d)[None, :], j[:, None] * d + cols[None, :]
        w = tl.load(weight + at, mask=inside, other=0).to(tl.float32)
        tl.store(both + at, w, mask=inside)
        x = tl.load(directions + i[:, None] * q + j[None, :], mask=(i < e)[:, None] & (j < q)[None, :], other=0)
        total += tl.dot(x.to(tl.float32), w, input_precision="ieee")
        if tl.program_id(0) == 0:
            b = tl.load(bias + j, mask=j < q, other=0).to(tl.float32)
            tl.store(narrow_bias + j, b, mask=j < q)
            along += tl.sum(x.to(tl.float32) * b[None, :], 1)
    at, real = i[:, None] * d + cols[None, :], (cols < d)[None, :]
    tl.store(folded + at, total, mask=(i < e)[:, None] & real)
    tl.store(both + q * d + at, total, mask=(i < below)[:, None] & real)
    if tl.program_id(0) == 0:
        tl.store(folded_bias + i, along, mask=i < e)


@kernel
def _unfold(
    weight, bias, directions, log_scale, sizes, sums, by_both, by_weight, by_bias, by_directions, by_scale,
    blocks, q, d, e, largest, SIZE: tl.constexpr, BAND: tl.constexpr, COLS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    i, j = tl.arange(0, SIZE), tl.program_id(0) * BAND + tl.arange(0, BAND)
    along, by_dots = tl.zeros((SIZE,), tl.float32), tl.zeros((SIZE,), tl.float32)
    by_query = tl.zeros((BAND,), tl.float32)
    for begin in range(0, blocks, BLOCKS):
        block = begin + tl.arange(0, BLOCKS)
        here, row = (block < blocks)[:, None], sums + block[:, None].to(tl.int64) * (2 * e + q)
        along += tl.sum(tl.load(row + i[None, :], mask=here & (i < e)[None, :], other=0), 0)
        by_dots += tl.sum(tl.load(row + e + i[None, :], mask=here & (i < e)[None, :], other=0), 0)
        by_query += tl.sum(tl.load(row + 2 * e + j[None, :], mask=here & (j < q)[None, :], other=0), 0)
    if tl.program_id(0) == 0:
        tl.store(by_scale, tl.where(tl.load(log_scale).to(tl.float32) <= largest, tl.sum(along, 0), 0.0))
    size = tl.load(sizes + i, mask=i < e, other=1)
    by_size = tl.where(size > 1e-12, along / (size * size), 0.0)
    at, real = i[:, None] * q + j[None, :], (i < e)[:, None] & (j < q)[None, :]
    x = tl.load(directions + at, mask=real, other=0).to(tl.float32)
    b = tl.load(bias + j, mask=j < q, other=0).to(tl.float32)
    tl.store(by_bias + j, by_query + tl.sum(x * by_dots[:, None], 0), mask=j < q)
    by = by_dots[:, None] * b[None, :] - by_size[:, None] * x
    for left in range(0, d, COLS):
        cols = left + tl.arange(0, COLS)
        inside, to = (j < q)[:, None] & (cols < d)[None, :], j[:, None] * d + cols[None, :]
        w = tl.load(weight + to, mask=inside, other=0).to(tl.float32)
        below = (i < e)[:, None] & (cols < d)[None, :]
        by_folded = tl.load(by_both + (q + i)[:, None] * d + cols[None, :], mask=below, other=0).to(tl.float32)
        by += tl.dot(by_folded, tl.trans(w), input_precision="ieee")
        own = tl.load(by_both + to, mask=inside, other=0).to(tl.float32)
        own += tl.dot(tl.trans(x), by_folded, input_precision="ieee")
        tl.store(by_weight + to, own, mask=inside)
    tl.store(by_directions + at, by, mask=real)
