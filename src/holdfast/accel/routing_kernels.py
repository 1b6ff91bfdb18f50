"""Kernels of a cosine router: score and choose experts, and the gradients of the scores.

t tokens, e experts, k chosen, q inner width of the cosine, w = q + e rounded up to a multiple of 8, so that rows of
16-bit numbers are aligned
"""

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.accel.registry import ceil_div, kernel, launch, power_of_two

ROWS, ROWS_BACKWARD = 128, 32  # tokens per program of `route` and `route_backward`
TILE = 8192  # entries of the query held at once


def folded_rows(q: int, e: int) -> int:
    return 8 * ceil_div(q + e, 8)


def tile_experts(experts: int) -> int:
    """Return a power of two with room for padding rows, and at least the smallest tile of a product."""
    return max(16, power_of_two(experts + 7))


def route(
    dots: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor, noise: Tensor | None, mask: Tensor | None,
    *, max_log_scale: float, sigma: float, top: int, shared: bool, inverse_sigma: float, balanced: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return scores (t, e), noisy scores, chosen experts (t, k), gates (t, k) and notes.

    Scores are exp(min(log_scale, max_log_scale)) dots / |query| / |direction| with dots (t, e) and query (t, q); noisy
    scores add `sigma` times the noise (t, e); `shared` gates sum to one. The notes hold the norms of queries (t) and
    directions (e), for `balanced` the importance and load of every expert per block, and space for two slopes (2, e).
    """
    (t, e), q = dots.shape, query.shape[1]
    blocks, size = ceil_div(t, ROWS), max(2, power_of_two(e))
    scores = torch.empty_like(dots)
    noisy = scores if noise is None else torch.empty_like(dots)
    chosen = torch.empty(t, top, dtype=torch.int64, device=dots.device)
    gates, notes = dots.new_empty(t, top), dots.new_empty(t + e + (blocks + 1) * 2 * e)
    launch(
        _route, (blocks,),
        (dots, query, directions, log_scale, dots if noise is None else noise, chosen if mask is None else mask,
         scores, noisy, chosen, gates, notes),
        t, e, q, max_log_scale, sigma, inverse_sigma,
        K=top, WIDE=power_of_two(top), SHARED=shared, NOISY=noise is not None, BALANCED=balanced,
        MASKED=mask is not None, ROWS=ROWS, SIZE=size, COLS=TILE // ROWS,
    )  # fmt: skip
    return scores, noisy, chosen, gates, notes


def route_backward(
    scores: Tensor, noisy: Tensor, chosen: Tensor, mask: Tensor | None, notes: Tensor, query: Tensor,
    log_scale: Tensor, by_gates: Tensor, by_loss: Tensor | None,
    *, max_log_scale: float, shared: bool, inverse_sigma: float, weight: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query and dots in one tensor (t, w), and sums per block of tokens (blocks, 2 e + q).

    They come from the gates (t, k) and from `weight` times the balance losses, whose slopes are in the notes. The sums
    are <grad, scores> and the gradient of the dot products per expert, and the gradient of the query.
    """
    (t, e), q, top = scores.shape, query.shape[1], chosen.shape[1]
    wide, blocks, size = folded_rows(q, e), ceil_div(t, ROWS_BACKWARD), tile_experts(e)
    joined, sums = query.new_empty(t, wide), scores.new_empty(blocks, 2 * e + q)
    launch(
        _route_backward, (blocks,),
        (scores, noisy, chosen, chosen if mask is None else mask, notes, query, log_scale, by_gates,
         scores if by_loss is None else by_loss, joined, sums),
        t, e, q, wide, ceil_div(t, ROWS), max_log_scale, inverse_sigma, weight,
        K=top, SHARED=shared, BALANCED=by_loss is not None, MASKED=mask is not None,
        ROWS=ROWS_BACKWARD, SIZE=size, COLS=TILE // max(ROWS_BACKWARD, 2 * size),
    )  # fmt: skip
    return joined, sums


@kernel
def _softmax(x):
    """Softmax of every row; columns without a score are -inf."""
    grown = tl.exp(x - tl.max(x, 1)[:, None])
    return grown / tl.sum(grown, 1)[:, None]


@kernel
def _route(
    dots, query, directions, log_scale, noise, mask, scores, noisy, chosen, gates, notes,
    t, e, q, max_log_scale, sigma, inverse_sigma,
    K: tl.constexpr, WIDE: tl.constexpr, SHARED: tl.constexpr, NOISY: tl.constexpr, BALANCED: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row, i = block.to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    here, mine = row < t, i < e
    total, square = tl.zeros((ROWS,), tl.float32), tl.zeros((SIZE,), tl.float32)
    for left in range(0, q, COLS):
        cols = left + tl.arange(0, COLS)[None, :]
        x = tl.load(query + row[:, None] * q + cols, mask=here[:, None] & (cols < q), other=0).to(tl.float32)
        total += tl.sum(x * x, 1)
        x = tl.load(directions + i[:, None] * q + cols, mask=mine[:, None] & (cols < q), other=0).to(tl.float32)
        square += tl.sum(x * x, 1)
    # the floor of the norms is that of `cosine_scores`: a zero vector has scores of 0
    length, size = tl.maximum(tl.sqrt(total), 1e-12), tl.maximum(tl.sqrt(square), 1e-12)
    tl.store(notes + row, length, mask=here)
    if block == 0:
        tl.store(notes + t + i, size, mask=mine)
    scale = tl.exp(tl.minimum(tl.load(log_scale).to(tl.float32), max_log_scale))
    at, inside = row[:, None] * e + i[None, :], here[:, None] & mine[None, :]
    clean = tl.load(dots + at, mask=inside, other=0) * (scale / size)[None, :] / length[:, None]
    tl.store(scores + at, clean, mask=inside)
    x = clean
    if NOISY:
        x += sigma * tl.load(noise + at, mask=inside, other=0)
        tl.store(noisy + at, x, mask=inside)
    share = _softmax(tl.where(mine[None, :], x, -float("inf")))
    # NaN ranks first, so that every choice names an existing expert
    rest = tl.where(mine[None, :], tl.where(x == x, x, float("inf")), -float("inf"))
    # k times the largest score that is left
    j, last = tl.arange(0, WIDE)[None, :], tl.zeros((ROWS,), tl.float32)
    best, gate = tl.zeros((ROWS, WIDE), tl.int32), tl.zeros((ROWS, WIDE), tl.float32)
    for choice in tl.static_range(K):
        first = tl.argmax(rest, 1)[:, None]
        picked = i[None, :] == first
        best = tl.where(j == choice, first, best)
        gate = tl.where(j == choice, tl.sum(tl.where(picked, share, 0.0), 1)[:, None], gate)
        last = tl.sum(tl.where(picked, x, 0.0), 1)
        rest = tl.where(picked, -float("inf"), rest)
    if SHARED:
        gate = gate / tl.sum(gate, 1)[:, None]
    to, valid = row[:, None] * K + j, here[:, None] & (j < K)
    tl.store(chosen + to, best.to(tl.int64), mask=valid)
    tl.store(gates + to, gate, mask=valid)
    # importance and load of this block; the load compares the clean scores with the k-th noisy one, which is `last`
    if BALANCED:
        share = _softmax(tl.where(mine[None, :], clean, -float("inf")))
        apart = (clean - last[:, None]) * inverse_sigma
        probability = 0.5 + 0.5 * tl.erf(apart * 0.7071067811865476)
        if MASKED:
            here = here & (tl.load(mask + row, mask=here, other=0) != 0)
        amounts = notes + t + e + block * 2 * e + i
        tl.store(amounts, tl.sum(tl.where(here[:, None], share, 0.0), 0), mask=mine)
        tl.store(amounts + e, tl.sum(tl.where(here[:, None], probability, 0.0), 0), mask=mine)


@kernel
def _route_backward(
    scores, noisy, chosen, mask, notes, query, log_scale, by_gates, by_loss, joined, sums,
    t, e, q, wide, forward_blocks, max_log_scale, inverse_sigma, weight,
    K: tl.constexpr, SHARED: tl.constexpr, BALANCED: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Shared gates are preserving ones: their divisor is a constant."""
    row, i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    here, mine = row < t, i < e
    at, inside = row[:, None] * e + i[None, :], here[:, None] & mine[None, :]
    # gradients of the k gates at the columns of their experts (t, e); after the loop `last` marks the k-th choice
    by_gate, picked = tl.zeros((ROWS, SIZE), tl.float32), tl.zeros((ROWS, SIZE), tl.int32)
    last = picked == 1
    for choice in tl.static_range(K):
        last = tl.load(chosen + row * K + choice, mask=here, other=0)[:, None] == i[None, :]
        by_gate += tl.where(last, tl.load(by_gates + row * K + choice, mask=here, other=0)[:, None], 0.0)
        picked += last.to(tl.int32)
    clean, x = tl.load(scores + at, mask=inside, other=0), tl.load(noisy + at, mask=inside, other=0)
    share = _softmax(tl.where(mine[None, :], x, -float("inf")))
    if SHARED:
        by_gate = by_gate / tl.sum(tl.where(picked > 0, share, 0.0), 1)[:, None]
    # backward pass of the softmax
    g = share * (by_gate - tl.sum(share * by_gate, 1)[:, None])
    if BALANCED:
        share = _softmax(tl.where(mine[None, :], clean, -float("inf")))
        # computed again from the scores instead of saved; 0.3989.. exp(-a^2 / 2) is the normal density
        threshold = tl.sum(tl.where(last, x, 0.0), 1)
        apart = (clean - threshold[:, None]) * inverse_sigma
        slopes, scale = notes + t + e + forward_blocks * 2 * e + i, weight * tl.load(by_loss)
        if MASKED:
            scale = tl.where(tl.load(mask + row, mask=here, other=0) != 0, scale, 0.0)[:, None]
        by_share = scale * tl.load(slopes, mask=mine, other=0)[None, :]
        by_probability = scale * tl.load(slopes + e, mask=mine, other=0)[None, :]
        by_score = by_probability * inverse_sigma * 0.3989422804014327 * tl.exp(-0.5 * apart * apart)
        g += by_score + share * (by_share - tl.sum(share * by_share, 1)[:, None])
        # the threshold is a score too, and gets the opposite of all these gradients
        g += tl.where(last, -tl.sum(by_score, 1)[:, None], 0.0)
    g = tl.where(inside, g, 0.0)
    length, size = tl.load(notes + row, mask=here, other=1), tl.load(notes + t + i, mask=mine, other=1)
    # dots and query in one tensor (t, w), so that the gradient of the tokens is a single product with W and E W
    along = g * clean
    scale = tl.exp(tl.minimum(tl.load(log_scale).to(tl.float32), max_log_scale))
    by = g * (scale / size)[None, :] / length[:, None]
    tl.store(joined + row[:, None] * wide + q + i[None, :], by, mask=here[:, None] & (i < wide - q)[None, :])
    sums += tl.program_id(0).to(tl.int64) * (2 * e + q)
    tl.store(sums + i, tl.sum(along, 0), mask=mine)
    tl.store(sums + e + i, tl.sum(by, 0), mask=mine)
    # scores are divided by the norm of the query as well
    by_length = tl.where(length > 1e-12, tl.sum(along, 1) / (length * length), 0.0)
    for left in range(0, q, COLS):
        cols = left + tl.arange(0, COLS)
        valid = here[:, None] & (cols < q)[None, :]
        z = tl.load(query + row[:, None] * q + cols[None, :], mask=valid, other=0).to(tl.float32)
        shorter = -by_length[:, None] * z
        tl.store(joined + row[:, None] * wide + cols[None, :], shorter, mask=valid)
        tl.store(sums + 2 * e + cols, tl.sum(shorter, 0), mask=cols < q)
