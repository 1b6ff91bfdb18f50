"""Scores of a cosine router on a GPU from its products: lengths, division and scale in one pass, there and back.

t tokens, e experts, q width in which the cosine is taken, w = q + e or a few more
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import kernel
from holdfast.nn.kernels.folding import size_of, whole
from holdfast.nn.kernels.launch import launch, pieces, power_of_two

MOST = 64  # experts
TYPES = (torch.float32,)
ROWS = 32
HELD = 2048  # sums at once


def cosines(
    dots: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor, largest: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(t, e) exp(min(log_scale, largest)) dots / |query| / |direction|, and both lengths, (t,) and (e,).

    Dots are (t, e), the query (t, q), the directions (e, q).
    """
    (t, e), q = dots.shape, query.shape[1]
    scores, lengths, sizes = torch.empty_like(dots), dots.new_empty(t), dots.new_empty(e)
    launch(
        _cosines,
        (pieces(t, ROWS),),
        dots,
        query,
        directions,
        log_scale,
        scores,
        lengths,
        sizes,
        t,
        e,
        q,
        largest,
        ROWS=ROWS,
        **_tile(e),
    )
    return scores, lengths, sizes


def gradients(
    scores: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor, lengths: Tensor, sizes: Tensor, grad: Tensor,
    largest: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Of the dots, the query, the directions and the scale's logarithm."""
    (t, e), q = scores.shape, query.shape[1]
    by_dots, by_query, by_directions, by_scale = (torch.empty_like(x) for x in (scores, query, directions, log_scale))
    blocks, tile = pieces(t, ROWS), _tile(e)
    sums = scores.new_empty(blocks, e)
    launch(
        _gradients, (blocks,), scores, query, log_scale, lengths, sizes, grad, by_dots, by_query, sums,
        t, e, q, e, e, q, largest, MORE=False, ROWS=ROWS, **tile,
    )  # fmt: skip
    launch(
        _few_gradients, (1,), directions, log_scale, sizes, sums, by_directions, by_scale, blocks, e, q, largest,
        ROWS=HELD // tile["SIZE"], **tile,
    )  # fmt: skip
    return by_dots, by_query, by_directions, by_scale


def joined_gradients(
    scores: Tensor, query: Tensor, log_scale: Tensor, lengths: Tensor, sizes: Tensor, grad: Tensor, largest: float
) -> tuple[Tensor, Tensor]:
    """Of the query beside the dots (t, w) in the query's type, then nothing; and for `unfold` the sums of blocks."""
    (t, e), q = scores.shape, query.shape[1]
    wide, blocks, size = whole(q, e), pieces(t, ROWS), size_of(e)
    joined, sums = query.new_empty(t, wide), scores.new_empty(blocks, 2 * e + q)
    launch(
        _gradients, (blocks,), scores, query, log_scale, lengths, sizes, grad, joined[:, q:], joined, sums,
        t, e, q, wide - q, wide, wide, largest, MORE=True, ROWS=ROWS, SIZE=size, COLS=_cols(size),
    )  # fmt: skip
    return joined, sums


def _cols(size: int) -> int:
    return 256 if size <= 16 else 64


def _tile(experts: int) -> dict[str, int]:
    size = max(2, power_of_two(experts))
    return {"SIZE": size, "COLS": _cols(size)}


@kernel
def _cosines(
    dots, query, directions, log_scale, scores, lengths, sizes, t, e, q, largest,
    ROWS: tl.constexpr, SIZE: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    total, square = tl.zeros((ROWS,), tl.float32), tl.zeros((SIZE,), tl.float32)
    for left in range(0, q, COLS):
        cols = left + tl.arange(0, COLS)[None, :]
        x = tl.load(query + row[:, None] * q + cols, mask=(row < t)[:, None] & (cols < q), other=0).to(tl.float32)
        total += tl.sum(x * x, 1)
        x = tl.load(directions + i[:, None] * q + cols, mask=(i < e)[:, None] & (cols < q), other=0).to(tl.float32)
        square += tl.sum(x * x, 1)
    length, size = tl.maximum(tl.sqrt(total), 1e-12), tl.maximum(tl.sqrt(square), 1e-12)
    tl.store(lengths + row, length, mask=row < t)
    if tl.program_id(0) == 0:
        tl.store(sizes + i, size, mask=i < e)
    scale = tl.exp(tl.minimum(tl.load(log_scale).to(tl.float32), largest))
    at, real = row[:, None] * e + i[None, :], (row < t)[:, None] & (i < e)[None, :]
    x = tl.load(dots + at, mask=real, other=0)
    tl.store(scores + at, x * (scale / size)[None, :] / length[:, None], mask=real)


@kernel
def _gradients(
    scores, query, log_scale, lengths, sizes, grad, by_dots, by_query, sums,
    t, e, q, wide, step_dots, step_query, largest,
    MORE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """The query has a gradient by its length alone; <grad, scores> of a block of tokens go to the few parameters.

    Rows of the dots' gradient are `wide`, and rows of both lie a step apart. MORE: the sums of both as well.
    """
    row, i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    at, real = row[:, None] * e + i[None, :], (row < t)[:, None] & (i < e)[None, :]
    length, size = tl.load(lengths + row, mask=row < t, other=1), tl.load(sizes + i, mask=i < e, other=1)
    g = tl.load(grad + at, mask=real, other=0)
    along = g * tl.load(scores + at, mask=real, other=0)
    scale = tl.exp(tl.minimum(tl.load(log_scale).to(tl.float32), largest))
    by = g * (scale / size)[None, :] / length[:, None]
    tl.store(by_dots + row[:, None] * step_dots + i[None, :], by, mask=(row < t)[:, None] & (i < wide)[None, :])
    sums += tl.program_id(0).to(tl.int64) * (2 * e + q if MORE else e)
    tl.store(sums + i, tl.sum(along, 0), mask=i < e)
    if MORE:
        tl.store(sums + e + i, tl.sum(by, 0), mask=i < e)
    by_length = tl.where(length > 1e-12, tl.sum(along, 1) / (length * length), 0.0)
    for left in range(0, q, COLS):
        cols = left + tl.arange(0, COLS)
        inside = (row < t)[:, None] & (cols < q)[None, :]
        x = tl.load(query + row[:, None] * q + cols[None, :], mask=inside, other=0).to(tl.float32)
        shorter = -by_length[:, None] * x
        tl.store(by_query + row[:, None] * step_query + cols[None, :], shorter, mask=inside)
        if MORE:
            tl.store(sums + 2 * e + cols, tl.sum(shorter, 0), mask=cols < q)


@kernel
def _few_gradients(
    directions, log_scale, sizes, sums, by_directions, by_scale, blocks, e, q, largest,
    ROWS: tl.constexpr, SIZE: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Of the directions, by their lengths alone, and of the scale, from the sums of all blocks; one program."""
    i = tl.arange(0, SIZE)
    total = tl.zeros((ROWS, SIZE), tl.float32)
    for begin in range(0, blocks, ROWS):
        block = begin + tl.arange(0, ROWS)
        real = (block < blocks)[:, None] & (i < e)[None, :]
        total += tl.load(sums + block[:, None] * e + i[None, :], mask=real, other=0)
    along = tl.sum(total, 0)
    tl.store(by_scale, tl.where(tl.load(log_scale).to(tl.float32) <= largest, tl.sum(along, 0), 0.0))
    size = tl.load(sizes + i, mask=i < e, other=1)
    by_size = tl.where(size > 1e-12, along / (size * size), 0.0)
    for left in range(0, q, COLS):
        cols = left + tl.arange(0, COLS)[None, :]
        inside = (i < e)[:, None] & (cols < q)
        x = tl.load(directions + i[:, None] * q + cols, mask=inside, other=0).to(tl.float32)
        tl.store(by_directions + i[:, None] * q + cols, -by_size[:, None] * x, mask=inside)
