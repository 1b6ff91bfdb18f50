"""From the products of a cosine router to choices and gates on a GPU, in one pass over the tokens, and one back.

t tokens, e experts, k chosen, q width in which the cosine is taken, w = q + e or a few more
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import ceil_div, kernel, launch, power_of_two
from holdfast.nn.kernels.folding import size_of, whole

ROWS = 128  # tokens of one program; what it adds up for all of them, it leaves as its block's
BACK = 32  # of one program on the way back
TILE = 8192  # numbers of the query at once


def route(
    dots: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor, drawn: Tensor | None, real: Tensor | None,
    *, largest: float, noise: float, top: int, renormalise: bool, steep: float, tutel: bool, weighed: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Scores (t, e), those with noise, the best (t, k), their gates, notes, and how often each was chosen in a block.

    Scores are exp(min(log_scale, largest)) dots / |query| / |direction|; dots are (t, e), the query (t, q). Notes are
    lengths of queries (t) and directions (e), then for `weighed` of each block the importance and the load of each
    expert, and room for two slopes (2, e).
    """
    (t, e), q = dots.shape, query.shape[1]
    blocks, size = ceil_div(t, ROWS), max(2, power_of_two(e))
    scores = torch.empty_like(dots)
    noisy = scores if drawn is None else torch.empty_like(dots)
    chosen = torch.empty(t, top, dtype=torch.int64, device=dots.device)
    gates, notes = dots.new_empty(t, top), dots.new_empty(t + e + (blocks + 1) * 2 * e)
    counts = torch.empty(e * top * blocks, dtype=torch.int32, device=dots.device)
    launch(
        _route, (blocks,),
        (dots, query, directions, log_scale, dots if drawn is None else drawn, chosen if real is None else real,
         scores, noisy, chosen, gates, notes, counts),
        t, e, q, blocks, largest, noise, steep,
        K=top, WIDE=power_of_two(top), WHOLE=renormalise, NOISY=drawn is not None, WEIGHED=weighed, TUTEL=tutel,
        SOME=real is not None, ROWS=ROWS, SIZE=size, COLS=TILE // ROWS,
    )  # fmt: skip
    return scores, noisy, chosen, gates, notes, counts


def route_back(
    scores: Tensor, noisy: Tensor, chosen: Tensor, real: Tensor | None, notes: Tensor, query: Tensor,
    log_scale: Tensor, by_gates: Tensor, by_loss: Tensor | None,
    *, largest: float, renormalise: bool, steep: float, tutel: bool, weight: float, detach: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of the query beside those of the dots (t, w), then nothing; and for `unfold` the sums of blocks.

    They come of the gates (t, k), and of `weight` times the balance losses whose slopes the notes hold.
    """
    (t, e), q, top = scores.shape, query.shape[1], chosen.shape[1]
    wide, blocks, size = whole(q, e), ceil_div(t, BACK), size_of(e)
    joined, sums = query.new_empty(t, wide), scores.new_empty(blocks, 2 * e + q)
    launch(
        _route_back, (blocks,),
        (scores, noisy, chosen, chosen if real is None else real, notes, query, log_scale, by_gates,
         scores if by_loss is None else by_loss, joined, sums),
        t, e, q, wide, ceil_div(t, ROWS), largest, steep, weight,
        K=top, WHOLE=renormalise, WEIGHED=by_loss is not None, TUTEL=tutel, SOME=real is not None, MOVES=not detach,
        ROWS=BACK, SIZE=size, COLS=TILE // max(BACK, 2 * size),
    )  # fmt: skip
    return joined, sums


@kernel
def _softmax(x):
    """Of each row; places without a score hold -inf."""
    grown = tl.exp(x - tl.max(x, 1)[:, None])
    return grown / tl.sum(grown, 1)[:, None]


@kernel
def _route(
    dots, query, directions, log_scale, drawn, real, scores, noisy, chosen, gates, notes, counts,
    t, e, q, blocks, largest, noise, steep,
    K: tl.constexpr, WIDE: tl.constexpr, WHOLE: tl.constexpr, NOISY: tl.constexpr, WEIGHED: tl.constexpr,
    TUTEL: tl.constexpr, SOME: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, COLS: tl.constexpr,
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
    length, size = tl.maximum(tl.sqrt(total), 1e-12), tl.maximum(tl.sqrt(square), 1e-12)
    tl.store(notes + row, length, mask=here)
    if block == 0:
        tl.store(notes + t + i, size, mask=mine)
    scale = tl.exp(tl.minimum(tl.load(log_scale).to(tl.float32), largest))
    at, inside = row[:, None] * e + i[None, :], here[:, None] & mine[None, :]
    clean = tl.load(dots + at, mask=inside, other=0) * (scale / size)[None, :] / length[:, None]
    tl.store(scores + at, clean, mask=inside)
    x = clean
    if NOISY:
        x += noise * tl.load(drawn + at, mask=inside, other=0)
        tl.store(noisy + at, x, mask=inside)
    share = _softmax(tl.where(mine[None, :], x, -float("inf")))
    # what is no number comes first and names an expert that there is
    rest = tl.where(mine[None, :], tl.where(x == x, x, float("inf")), -float("inf"))
    j, last = tl.arange(0, WIDE)[None, :], tl.zeros((ROWS,), tl.float32)
    best, gate = tl.zeros((ROWS, WIDE), tl.int32), tl.zeros((ROWS, WIDE), tl.float32)
    for choice in tl.static_range(K):
        first = tl.argmax(rest, 1)[:, None]
        picked = i[None, :] == first
        best = tl.where(j == choice, first, best)
        gate = tl.where(j == choice, tl.sum(tl.where(picked, share, 0.0), 1)[:, None], gate)
        last = tl.sum(tl.where(picked, x, 0.0), 1)
        rest = tl.where(picked, -float("inf"), rest)
        count = tl.sum((picked & here[:, None]).to(tl.int32), 0)
        tl.store(counts + (i * K + choice) * blocks + block, count, mask=mine)
    if WHOLE:
        gate = gate / tl.sum(gate, 1)[:, None]
    to, kept = row[:, None] * K + j, here[:, None] & (j < K)
    tl.store(chosen + to, best.to(tl.int64), mask=kept)
    tl.store(gates + to, gate, mask=kept)
    if WEIGHED:
        share = _softmax(tl.where(mine[None, :], clean, -float("inf")))
        apart = ((share if TUTEL else clean) - last[:, None]) * steep
        chance = 0.5 + 0.5 * tl.erf(apart * 0.7071067811865476)
        if SOME:
            here = here & (tl.load(real + row, mask=here, other=0) != 0)
        amounts = notes + t + e + block * 2 * e + i
        tl.store(amounts, tl.sum(tl.where(here[:, None], share, 0.0), 0), mask=mine)
        tl.store(amounts + e, tl.sum(tl.where(here[:, None], chance, 0.0), 0), mask=mine)


@kernel
def _route_back(
    scores, noisy, chosen, real, notes, query, log_scale, by_gates, by_loss, joined, sums,
    t, e, q, wide, there, largest, steep, weight,
    K: tl.constexpr, WHOLE: tl.constexpr, WEIGHED: tl.constexpr, TUTEL: tl.constexpr, SOME: tl.constexpr,
    MOVES: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Gates that add up to one are a softmax over the chosen scores alone. `there` are the blocks of the way there."""
    row, i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    here, mine = row < t, i < e
    at, inside = row[:, None] * e + i[None, :], here[:, None] & mine[None, :]
    asked, picked = tl.zeros((ROWS, SIZE), tl.float32), tl.zeros((ROWS, SIZE), tl.int32)
    last = picked == 1
    for choice in tl.static_range(K):
        last = tl.load(chosen + row * K + choice, mask=here, other=0)[:, None] == i[None, :]
        asked += tl.where(last, tl.load(by_gates + row * K + choice, mask=here, other=0)[:, None], 0.0)
        picked += last.to(tl.int32)
    clean, x = tl.load(scores + at, mask=inside, other=0), tl.load(noisy + at, mask=inside, other=0)
    share = _softmax(tl.where((picked > 0) if WHOLE else mine[None, :], x, -float("inf")))
    g = share * (asked - tl.sum(share * asked, 1)[:, None])
    if WEIGHED:
        share = _softmax(tl.where(mine[None, :], clean, -float("inf")))
        threshold = tl.sum(tl.where(last, x, 0.0), 1)
        apart = ((share if TUTEL else clean) - threshold[:, None]) * steep
        slopes, scale = notes + t + e + there * 2 * e + i, weight * tl.load(by_loss)
        if SOME:
            scale = tl.where(tl.load(real + row, mask=here, other=0) != 0, scale, 0.0)[:, None]
        by_share = scale * tl.load(slopes, mask=mine, other=0)[None, :]
        by_chance = scale * tl.load(slopes + e, mask=mine, other=0)[None, :]
        by_score = by_chance * steep * 0.3989422804014327 * tl.exp(-0.5 * apart * apart)
        if TUTEL:
            by_share += by_score
        else:
            g += by_score
        g += share * (by_share - tl.sum(share * by_share, 1)[:, None])
        if MOVES:
            g += tl.where(last, -tl.sum(by_score, 1)[:, None], 0.0)
    g = tl.where(inside, g, 0.0)
    length, size = tl.load(notes + row, mask=here, other=1), tl.load(notes + t + i, mask=mine, other=1)
    along = g * clean
    scale = tl.exp(tl.minimum(tl.load(log_scale).to(tl.float32), largest))
    by = g * (scale / size)[None, :] / length[:, None]
    tl.store(joined + row[:, None] * wide + q + i[None, :], by, mask=here[:, None] & (i < wide - q)[None, :])
    sums += tl.program_id(0).to(tl.int64) * (2 * e + q)
    tl.store(sums + i, tl.sum(along, 0), mask=mine)
    tl.store(sums + e + i, tl.sum(by, 0), mask=mine)
    by_length = tl.where(length > 1e-12, tl.sum(along, 1) / (length * length), 0.0)
    for left in range(0, q, COLS):
        cols = left + tl.arange(0, COLS)
        there_is = here[:, None] & (cols < q)[None, :]
        z = tl.load(query + row[:, None] * q + cols[None, :], mask=there_is, other=0).to(tl.float32)
        shorter = -by_length[:, None] * z
        tl.store(joined + row[:, None] * wide + cols[None, :], shorter, mask=there_is)
        tl.store(sums + 2 * e + cols, tl.sum(shorter, 0), mask=cols < q)
