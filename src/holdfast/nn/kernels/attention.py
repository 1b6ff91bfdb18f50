"""Kernels of attention among few tokens: one program computes all of a head, so that nothing is added up in memory.

b batch, h heads, t queries, u keys, d width of a head. Results have the memory layout (b, t, h, d), in which the next
layer of a transformer reads them.
"""

from typing import Any

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.core.kernels import kernel, launch, power_of_two

DTYPES = (torch.bfloat16, torch.float16)
MIN_SIDE = 16  # of a product of matrices


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor, *, dropout: float, scale: float
) -> Tensor:
    """Return softmax(scale q k' where the mask is true) v (b, h, t, d), with random weights set to 0.

    Args:
        query: (b, h, t, d), the other two (b, h, u, d).
        mask: bool (b, h, t, u), false where a query must not see a key.
        seed: int64 (1,), which determines the weights that are dropped.
        dropout: Probability of dropping a weight.
        scale: Factor of the scores.
    """
    out = _like(query)
    flags, numbers = _arguments(query, key, mask, dropout)
    launch(
        _attention, (query.shape[0] * query.shape[1],),
        (query, key, value, query if mask is None else mask.view(torch.uint8), seed, out),
        *_strides(query, key, value, mask), *out.stride()[:3], *numbers, dropout, scale, **flags,
    )  # fmt: skip
    return out


def attention_gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor,
    *, dropout: float, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key and value from that of the result of `attention`."""
    by_query, by_key, by_value = _like(query), _like(key), _like(value)
    flags, numbers = _arguments(query, key, mask, dropout)
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    launch(
        _attention_gradients, (query.shape[0] * query.shape[1],),
        (grad, query, key, value, query if mask is None else mask.view(torch.uint8), seed, by_query, by_key, by_value),
        *grad.stride()[:3], *_strides(query, key, value, mask), *by_query.stride()[:3], *by_key.stride()[:3],
        *numbers, dropout, scale, **flags,
    )  # fmt: skip
    return by_query, by_key, by_value


def _like(x: Tensor) -> Tensor:
    """Return an empty tensor (b, h, t, d) with the memory layout (b, t, h, d)."""
    b, h, t, d = x.shape
    return x.new_empty(b, t, h, d).transpose(1, 2)


def _strides(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    masks = (0, 0, 0, 0) if mask is None else mask.stride()
    return *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *masks


def _arguments(query: Tensor, key: Tensor, mask: Tensor | None, dropout: float) -> tuple[dict[str, Any], list[int]]:
    (_, heads, t, d), u = query.shape, key.shape[2]
    rows, cols = (max(MIN_SIDE, power_of_two(side)) for side in (t, u))
    flags = {"MASKED": mask is not None, "DROPOUT": dropout > 0, "ROWS": rows, "COLS": cols, "WIDTH": d}
    warps = 2 if rows * cols <= 32 * 32 else 4 if rows * cols <= 64 * 64 else 8
    return {**flags, "num_warps": warps}, [heads, t, u]


@kernel
def _tile(x, b, h, b_stride, h_stride, t_stride, t, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load one head (ROWS, WIDTH); rows after the last are 0."""
    i, c = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    pointers = x + b * b_stride + h * h_stride + i[:, None] * t_stride + c[None, :]
    return tl.load(pointers, mask=(i < t)[:, None], other=0)


@kernel
def _store(out, tile, b, h, b_stride, h_stride, t_stride, t, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    i, c = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    pointers = out + b * b_stride + h * h_stride + i[:, None] * t_stride + c[None, :]
    tl.store(pointers, tile.to(out.dtype.element_ty), mask=(i < t)[:, None])


@kernel
def _weights(
    q, k, mask, b, h, mb, mh, mt, mu, t, u, scale, MASKED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):  # fmt: skip
    """Return the softmax weights (ROWS, COLS) in fp32; those of a query that sees no key are 0."""
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    seen = (i < t) & (j < u)
    if MASKED:
        seen = tl.load(mask + b * mb + h * mh + i * mt + j * mu, mask=seen, other=0) != 0
    scores = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, -float("inf"))
    top = tl.max(scores, 1)
    e = tl.where(seen, tl.exp(scores - tl.where(top == -float("inf"), 0.0, top)[:, None]), 0.0)
    total = tl.sum(e, 1)
    return e / tl.where(total == 0, 1.0, total)[:, None]


@kernel
def _dropout_factors(seed, head, t, u, dropout, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return the factor (ROWS, COLS) of every weight: 0, or the inverse probability of not dropping it.

    The random number of a weight depends on the seed and on its position.
    """
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    start = _scramble(tl.load(seed).to(tl.uint32))
    number = _scramble(((head * t + i) * u + j).to(tl.uint32) + start) >> 8  # 24 bits, which fp32 represents exactly
    return tl.where(number.to(tl.float32) >= dropout * 16777216.0, 1 / (1 - dropout), 0.0)


@kernel
def _scramble(x):
    """Map integers to random ones: one step of a permuted congruential generator (PCG, O'Neill, 2014)."""
    state = x * 747796405 + 2891336453
    word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737
    return (word >> 22) ^ word


@kernel
def _attention(
    query, key, value, mask, seed, out,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, mb, mh, mt, mu, ob, oh, ot, heads, t, u, dropout, scale,
    MASKED: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program per text and head."""
    head = tl.program_id(0)
    b, h = (head // heads).to(tl.int64), head % heads
    q = _tile(query, b, h, qb, qh, qt, t, ROWS, WIDTH)
    k = _tile(key, b, h, kb, kh, kt, u, COLS, WIDTH)
    v = _tile(value, b, h, vb, vh, vt, u, COLS, WIDTH)
    p = _weights(q, k, mask, b, h, mb, mh, mt, mu, t, u, scale, MASKED, ROWS, COLS)
    if DROPOUT:
        p *= _dropout_factors(seed, head, t, u, dropout, ROWS, COLS)
    _store(out, tl.dot(p.to(v.dtype), v), b, h, ob, oh, ot, t, ROWS, WIDTH)


@kernel
def _attention_gradients(
    grad, query, key, value, mask, seed, by_query, by_key, by_value,
    gb, gh, gt, qb, qh, qt, kb, kh, kt, vb, vh, vt, mb, mh, mt, mu, ob, oh, ot, ub, uh, ut,
    heads, t, u, dropout, scale,
    MASKED: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program per text and head, which recomputes the weights."""
    head = tl.program_id(0)
    b, h = (head // heads).to(tl.int64), head % heads
    q = _tile(query, b, h, qb, qh, qt, t, ROWS, WIDTH)
    k = _tile(key, b, h, kb, kh, kt, u, COLS, WIDTH)
    v = _tile(value, b, h, vb, vh, vt, u, COLS, WIDTH)
    g = _tile(grad, b, h, gb, gh, gt, t, ROWS, WIDTH)
    p = _weights(q, k, mask, b, h, mb, mh, mt, mu, t, u, scale, MASKED, ROWS, COLS)
    by_weights, read = tl.dot(g, tl.trans(v)), p
    if DROPOUT:
        factor = _dropout_factors(seed, head, t, u, dropout, ROWS, COLS)
        by_weights *= factor
        read *= factor
    _store(by_value, tl.dot(tl.trans(read.to(g.dtype)), g), b, h, ub, uh, ut, u, COLS, WIDTH)
    by_scores = (p * (by_weights - tl.sum(p * by_weights, 1)[:, None]) * scale).to(q.dtype)
    _store(by_query, tl.dot(by_scores, k), b, h, ob, oh, ot, t, ROWS, WIDTH)
    _store(by_key, tl.dot(tl.trans(by_scores), q), b, h, ub, uh, ut, u, COLS, WIDTH)
