"""Kernels of attention among few tokens: one program computes all of a head, so that nothing is added up in memory.

b batch, h heads, t queries, u keys, d width of a head. Tensors have the memory layout (b, t, h, d), in which a
transformer writes and reads them, so that a launch has few arguments.
"""

from typing import Any

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.accel.registry import kernel, launch, power_of_two

DTYPES = (torch.bfloat16, torch.float16)
MIN_SIDE = 16  # of a product of matrices


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor, *, dropout: float, scale: float
) -> Tensor:
    """Return softmax(scale q k' where the mask is true) v (b, h, t, d), with random weights set to 0.

    Args:
        query: (b, h, t, d), the other two (b, h, u, d).
        mask: bool (b, 1, t, u), false where a query must not see a key.
        seed: int64 (1,), which determines the weights that are dropped.
        dropout: Probability of dropping a weight.
        scale: Factor of the scores.
    """
    query, key, value = map(_in_layout, (query, key, value))
    out = _like(query)
    _launch(_attention, (query, key, value), mask, (seed, out), dropout=dropout, scale=scale)
    return out


def attention_gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor,
    *, dropout: float, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key and value from that of the result of `attention`."""
    query, key, value, grad = map(_in_layout, (query, key, value, grad))
    by_query, by_key, by_value = _like(query), _like(key), _like(value)
    outputs = seed, grad, by_query, by_key, by_value
    _launch(_attention_gradients, (query, key, value), mask, outputs, dropout=dropout, scale=scale)
    return by_query, by_key, by_value


def _launch(
    function: Any, inputs: tuple[Tensor, ...], mask: Tensor | None, others: tuple[Tensor, ...],
    *, dropout: float, scale: float,
) -> None:  # fmt: skip
    query, key, _ = inputs
    (b, heads, t, d), u = query.shape, key.shape[2]
    rows, cols = max(MIN_SIDE, power_of_two(t)), max(MIN_SIDE, power_of_two(u))
    strides = (0, 0, 0) if mask is None else (mask.stride(0), mask.stride(2), mask.stride(3))
    launch(
        function, (b * heads,), (*inputs, query if mask is None else mask, *others), *strides, heads, t, u, dropout,
        scale, MASKED=mask is not None, DROPOUT=dropout > 0, ROWS=rows, COLS=cols, WIDTH=d,
        num_warps=2 if rows * cols <= 32 * 32 else 4 if rows * cols <= 64 * 64 else 8,
    )  # fmt: skip


def _in_layout(x: Tensor) -> Tensor:
    """Return the tensor (b, h, t, d) with the memory layout (b, t, h, d)."""
    _, h, t, d = x.shape
    return x if x.stride() == (t * h * d, d, h * d, 1) else x.transpose(1, 2).contiguous().transpose(1, 2)


def _like(x: Tensor) -> Tensor:
    """Return an empty tensor (b, h, t, d) with the memory layout (b, t, h, d)."""
    b, h, t, d = x.shape
    return x.new_empty(b, t, h, d).transpose(1, 2)


@kernel
def _tile(x, b, h, heads, t, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load one head (ROWS, WIDTH); rows after the last are 0."""
    i, c = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    pointers = x + b * t * heads * WIDTH + (i[:, None] * heads + h) * WIDTH + c[None, :]
    return tl.load(pointers, mask=(i < t)[:, None], other=0)


@kernel
def _store(out, tile, b, h, heads, t, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    i, c = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    pointers = out + b * t * heads * WIDTH + (i[:, None] * heads + h) * WIDTH + c[None, :]
    tl.store(pointers, tile.to(out.dtype.element_ty), mask=(i < t)[:, None])


@kernel
def _weights(
    q, k, mask, b, mb, mt, mu, t, u, scale, MASKED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):  # fmt: skip
    """Return the softmax weights (ROWS, COLS) in fp32; those of a query that sees no key are 0."""
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    seen = (i < t) & (j < u)
    if MASKED:
        seen = tl.load(mask + b * mb + i * mt + j * mu, mask=seen, other=0) != 0
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
    query, key, value, mask, seed, out, mb, mt, mu, heads, t, u, dropout, scale,
    MASKED: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program per text and head."""
    head = tl.program_id(0)
    b, h = (head // heads).to(tl.int64), head % heads
    q, k = _tile(query, b, h, heads, t, ROWS, WIDTH), _tile(key, b, h, heads, u, COLS, WIDTH)
    v = _tile(value, b, h, heads, u, COLS, WIDTH)
    p = _weights(q, k, mask, b, mb, mt, mu, t, u, scale, MASKED, ROWS, COLS)
    if DROPOUT:
        p *= _dropout_factors(seed, head, t, u, dropout, ROWS, COLS)
    _store(out, tl.dot(p.to(v.dtype), v), b, h, heads, t, ROWS, WIDTH)


@kernel
def _attention_gradients(
    query, key, value, mask, seed, grad, by_query, by_key, by_value, mb, mt, mu, heads, t, u, dropout, scale,
    MASKED: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program per text and head, which recomputes the weights."""
    head = tl.program_id(0)
    b, h = (head // heads).to(tl.int64), head % heads
    q, g = _tile(query, b, h, heads, t, ROWS, WIDTH), _tile(grad, b, h, heads, t, ROWS, WIDTH)
    k, v = _tile(key, b, h, heads, u, COLS, WIDTH), _tile(value, b, h, heads, u, COLS, WIDTH)
    p = _weights(q, k, mask, b, mb, mt, mu, t, u, scale, MASKED, ROWS, COLS)
    by_weights, read = tl.dot(g, tl.trans(v)), p
    if DROPOUT:
        factor = _dropout_factors(seed, head, t, u, dropout, ROWS, COLS)
        by_weights *= factor
        read *= factor
    _store(by_value, tl.dot(tl.trans(read.to(g.dtype)), g), b, h, heads, u, COLS, WIDTH)
    by_scores = (p * (by_weights - tl.sum(p * by_weights, 1)[:, None]) * scale).to(q.dtype)
    _store(by_query, tl.dot(by_scores, k), b, h, heads, t, ROWS, WIDTH)
    _store(by_key, tl.dot(tl.trans(by_scores), q), b, h, heads, u, COLS, WIDTH)
