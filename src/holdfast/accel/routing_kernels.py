"""Kernels of a cosine router: fold its parameters, score and choose experts, sort pairs by expert, balance losses.

t tokens, e experts, k chosen, s = t k pairs of a token and an expert, d width, q inner width of the cosine,
w = q + e rounded up to a multiple of 8, so that rows of 16-bit numbers are aligned
"""

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.accel.registry import ceil_div, kernel, launch, power_of_two

FOLD_COLS, FOLD_DEPTH = 32, 32  # tile of the weight in `fold`
BAND, BAND_COLS = 16, 64  # tile of the weight in `unfold`: one program per band of rows
SUM_BLOCKS = 128  # block sums that `unfold` adds at once
ROWS, ROWS_BACKWARD = 128, 32  # tokens per program of `route` and `route_backward`
TILE = 8192  # entries of the query held at once


def folded_rows(q: int, e: int) -> int:
    return 8 * ceil_div(q + e, 8)


def tile_experts(experts: int) -> int:
    """Return a power of two with room for padding rows, and at least the smallest tile of a product."""
    return max(16, power_of_two(experts + 7))


def fold(weight: Tensor, bias: Tensor, directions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return E W (e, d) and E b (e,) in fp32, and in `dtype` the rows of W, E W and padding (w, d), and b (q,).

    The weight W is (q, d), the bias b (q,), the directions E (e, q).
    """
    (q, d), e, device = weight.shape, len(directions), weight.device
    both, narrow_bias = (torch.empty(size, dtype=dtype, device=device) for size in ((folded_rows(q, e), d), (q,)))
    folded, folded_bias = (torch.empty(size, dtype=torch.float32, device=device) for size in ((e, d), (e,)))
    launch(
        _fold, (ceil_div(d, FOLD_COLS),), (weight, bias, directions, both, narrow_bias, folded, folded_bias),
        q, d, e, len(both) - q, SIZE=tile_experts(e), COLS=FOLD_COLS, DEPTH=FOLD_DEPTH,
    )  # fmt: skip
    return folded, folded_bias, both, narrow_bias


def unfold(
    weight: Tensor, bias: Tensor, directions: Tensor, log_scale: Tensor, sizes: Tensor, sums: Tensor, by_both: Tensor,
    max_log_scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of weight, bias, directions and log scale.

    `by_both` (w, d) is the gradient of the rows of W and E W. `sums` (blocks, 2 e + q) holds per block of tokens
    <grad, scores> and the gradient of the dot products per expert, and the gradient of the query. `sizes` (e,) are the
    norms of the directions.
    """
    (q, d), e = weight.shape, len(directions)
    grads = tuple(torch.empty_like(x) for x in (weight, bias, directions, log_scale))
    launch(
        _unfold, (ceil_div(q, BAND),), (weight, bias, directions, log_scale, sizes, sums, by_both, *grads),
        sums.shape[0], q, d, e, max_log_scale, SIZE=tile_experts(e), BAND=BAND, COLS=BAND_COLS, BLOCKS=SUM_BLOCKS,
    )  # fmt: skip
    return grads  # pyright: ignore[reportReturnType]


def route(
    dots: Tensor, query: Tensor, directions: Tensor, log_scale: Tensor, noise: Tensor | None, mask: Tensor | None,
    *, max_log_scale: float, sigma: float, top: int, shared: bool, inverse_sigma: float, balanced: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return scores (t, e), noisy scores, chosen experts (t, k), gates (t, k), notes, and choices per block and expert.

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
    counts = torch.empty(e * top * blocks, dtype=torch.int32, device=dots.device)
    launch(
        _route, (blocks,),
        (dots, query, directions, log_scale, dots if noise is None else noise, chosen if mask is None else mask,
         scores, noisy, chosen, gates, notes, counts),
        t, e, q, blocks, max_log_scale, sigma, inverse_sigma,
        K=top, WIDE=power_of_two(top), SHARED=shared, NOISY=noise is not None, BALANCED=balanced,
        MASKED=mask is not None, ROWS=ROWS, SIZE=size, COLS=TILE // ROWS,
    )  # fmt: skip
    return scores, noisy, chosen, gates, notes, counts


def route_backward(
    scores: Tensor, noisy: Tensor, chosen: Tensor, mask: Tensor | None, notes: Tensor, query: Tensor,
    log_scale: Tensor, by_gates: Tensor, by_loss: Tensor | None,
    *, max_log_scale: float, shared: bool, inverse_sigma: float, weight: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query and dots in one tensor (t, w), and the block sums that `unfold` takes.

    They come from the gates (t, k) and from `weight` times the balance losses, whose slopes are in the notes.
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


def sort_pairs(
    chosen: Tensor, counts: Tensor, notes: Tensor, experts: int, *, weight: float
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return (order, position, token, expert, ends) of a stable sort of the pairs by expert, and statistics in fp32.

    The counts of `route` give the number of pairs before each block, ranks within blocks the rest of the sort; first
    choices precede second ones. The statistics are `weight` times the sum of the balance losses, both losses, each
    expert's share (e,) of the importance, and its share of the pairs; with weight 0 only the last one is filled. The
    slopes of both losses are written to the notes.
    """
    (t, k), device = chosen.shape, chosen.device
    blocks, size = ceil_div(t, ROWS), max(2, power_of_two(experts))
    pairs = [torch.empty(t * k, dtype=torch.int64, device=device) for _ in range(4)]
    ends = torch.empty(experts, dtype=torch.int32, device=device)
    losses, shares = [notes.new_empty(()) for _ in range(3)], [notes.new_empty(experts) for _ in range(2)]
    launch(
        _sort_pairs, (blocks, k),
        (chosen, counts.cumsum(0, dtype=torch.int32), notes, *pairs, ends, *losses, *shares), t, k, experts, weight,
        BALANCED=weight > 0, BLOCK=ROWS, SIZE=size, num_warps=8 if size > 16 else 4,
    )  # fmt: skip
    return (*pairs, ends), (*losses, *shares)


@kernel
def _fold(
    weight, bias, directions, both, narrow_bias, folded, folded_bias, q, d, e, below,
    SIZE: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    # one program per tile of columns: it copies W (q, cols) in the narrow dtype, and adds up E W (e, cols) meanwhile
    i, cols = tl.arange(0, SIZE), tl.program_id(0) * COLS + tl.arange(0, COLS)
    total, along = tl.zeros((SIZE, COLS), tl.float32), tl.zeros((SIZE,), tl.float32)
    for top in range(0, q, DEPTH):
        j = top + tl.arange(0, DEPTH)
        inside, at = (j < q)[:, None] & (cols < d)[None, :], j[:, None] * d + cols[None, :]
        w = tl.load(weight + at, mask=inside, other=0).to(tl.float32)
        tl.store(both + at, w, mask=inside)
        x = tl.load(directions + i[:, None] * q + j[None, :], mask=(i < e)[:, None] & (j < q)[None, :], other=0)
        # complete fp32 products: rounded scores would change choices
        total += tl.dot(x.to(tl.float32), w, input_precision="ieee")
        if tl.program_id(0) == 0:
            b = tl.load(bias + j, mask=j < q, other=0).to(tl.float32)
            tl.store(narrow_bias + j, b, mask=j < q)
            along += tl.sum(x.to(tl.float32) * b[None, :], 1)
    # the padding rows of `both` become zero, because directions beyond e were loaded as zeros
    at, real = i[:, None] * d + cols[None, :], (cols < d)[None, :]
    tl.store(folded + at, total, mask=(i < e)[:, None] & real)
    tl.store(both + q * d + at, total, mask=(i < below)[:, None] & real)
    if tl.program_id(0) == 0:
        tl.store(folded_bias + i, along, mask=i < e)


@kernel
def _unfold(
    weight, bias, directions, log_scale, sizes, sums, by_both, by_weight, by_bias, by_directions, by_scale,
    blocks, q, d, e, max_log_scale, SIZE: tl.constexpr, BAND: tl.constexpr, COLS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    # over all blocks of tokens in a fixed order: <grad, scores> (e,), gradients of dots (e,) and a band of the query
    i, j = tl.arange(0, SIZE), tl.program_id(0) * BAND + tl.arange(0, BAND)
    along, by_dots = tl.zeros((SIZE,), tl.float32), tl.zeros((SIZE,), tl.float32)
    by_query = tl.zeros((BAND,), tl.float32)
    for begin in range(0, blocks, BLOCKS):
        block = begin + tl.arange(0, BLOCKS)
        here, row = (block < blocks)[:, None], sums + block[:, None].to(tl.int64) * (2 * e + q)
        along += tl.sum(tl.load(row + i[None, :], mask=here & (i < e)[None, :], other=0), 0)
        by_dots += tl.sum(tl.load(row + e + i[None, :], mask=here & (i < e)[None, :], other=0), 0)
        by_query += tl.sum(tl.load(row + 2 * e + j[None, :], mask=here & (j < q)[None, :], other=0), 0)
    # scores are proportional to exp(log_scale), so its gradient is <grad, scores>, and 0 beyond the limit
    if tl.program_id(0) == 0:
        tl.store(by_scale, tl.where(tl.load(log_scale).to(tl.float32) <= max_log_scale, tl.sum(along, 0), 0.0))
    size = tl.load(sizes + i, mask=i < e, other=1)
    # scores are divided by the norm of a direction, which adds a gradient along the direction
    by_size = tl.where(size > 1e-12, along / (size * size), 0.0)
    at, real = i[:, None] * q + j[None, :], (i < e)[:, None] & (j < q)[None, :]
    x = tl.load(directions + at, mask=real, other=0).to(tl.float32)
    b = tl.load(bias + j, mask=j < q, other=0).to(tl.float32)
    tl.store(by_bias + j, by_query + tl.sum(x * by_dots[:, None], 0), mask=j < q)
    # E b and E W are products of parameters: E gets by_dots b' and by_folded W', W gets E' by_folded
    by = by_dots[:, None] * b[None, :] - by_size[:, None] * x
    for left in range(0, d, COLS):
        cols = left + tl.arange(0, COLS)
        inside, to = (j < q)[:, None] & (cols < d)[None, :], j[:, None] * d + cols[None, :]
        w = tl.load(weight + to, mask=inside, other=0).to(tl.float32)
        below = (i < e)[:, None] & (cols < d)[None, :]
        by_folded = tl.load(by_both + (q + i)[:, None] * d + cols[None, :], mask=below, other=0).to(tl.float32)
        by += tl.dot(by_folded, tl.trans(w), input_precision="ieee")
        by_w = tl.load(by_both + to, mask=inside, other=0).to(tl.float32)
        by_w += tl.dot(tl.trans(x), by_folded, input_precision="ieee")
        tl.store(by_weight + to, by_w, mask=inside)
    tl.store(by_directions + at, by, mask=real)


@kernel
def _softmax(x):
    """Softmax of every row; columns without a score are -inf."""
    grown = tl.exp(x - tl.max(x, 1)[:, None])
    return grown / tl.sum(grown, 1)[:, None]


@kernel
def _route(
    dots, query, directions, log_scale, noise, mask, scores, noisy, chosen, gates, notes, counts,
    t, e, q, blocks, max_log_scale, sigma, inverse_sigma,
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
    # k times the largest score that is left; every program writes its number of choices per expert, for `sort_pairs`
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


@kernel
def _sort_pairs(
    chosen, counts, notes, order, position, token, expert, ends, both, first, second, importance, shares,
    t, k, e, weight, BALANCED: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Counts are running sums in the order of expert, choice and block, as the sorted pairs are."""
    # position of a pair: pairs of all experts, choices and blocks before it, and its rank in its own block; no two
    # programs write to one position, and the order of the tokens stays
    block, choice, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    row, i = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64), tl.arange(0, SIZE)
    mine = tl.load(chosen + row * k + choice, mask=row < t, other=SIZE)
    member = (mine[:, None] == i[None, :]).to(tl.int32)
    slot = (i * k + choice) * blocks + block
    before = tl.load(counts + slot - 1, mask=(slot > 0) & (i < e), other=0)
    to = tl.sum(member * (tl.cumsum(member, 0) - 1 + before[None, :]), 1)
    pair = choice * t + row
    tl.store(position + pair, to.to(tl.int64), mask=row < t)
    tl.store(order + to, pair, mask=row < t)
    tl.store(token + to, row, mask=row < t)
    tl.store(expert + to, mine, mask=row < t)
    # ends and losses are small: one program computes them without another launch
    if block + choice == 0:
        end = tl.load(counts + (i + 1) * k * blocks - 1, mask=i < e, other=0)
        tl.store(ends + i, end, mask=i < e)
        tl.store(shares + i, (end - before).to(tl.float32) / (t * k), mask=i < e)
        if BALANCED:
            amounts = notes + t + e
            slopes = amounts + blocks * 2 * e
            value = _variation(amounts, blocks, slopes, e, BLOCK, SIZE)
            tl.store(first, value)
            more = _variation(amounts + e, blocks, slopes + e, e, BLOCK, SIZE)
            tl.store(second, more)
            tl.store(both, weight * (value + more))
            amount = _total(amounts, blocks, e, BLOCK, SIZE)
            tl.store(importance + i, amount / tl.sum(amount, 0), mask=i < e)


@kernel
def _total(amounts, blocks, e, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Sum (e,) of the amounts of all blocks, whose rows are 2 e apart."""
    i, total = tl.arange(0, SIZE), tl.zeros((ROWS, SIZE), tl.float32)
    for begin in range(0, blocks, ROWS):
        block = begin + tl.arange(0, ROWS)
        here = (block < blocks)[:, None] & (i < e)[None, :]
        total += tl.load(amounts + block[:, None] * 2 * e + i[None, :], mask=here, other=0)
    return tl.sum(total, 0)


@kernel
def _variation(amounts, blocks, slopes, e, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """(std / mean)^2 of the total amounts; the derivative is written to the slopes."""
    i, amount = tl.arange(0, SIZE), _total(amounts, blocks, e, ROWS, SIZE)
    mean = tl.sum(amount, 0) / e
    off = tl.where(i < e, amount - mean, 0.0)
    variance, below = tl.sum(off * off, 0) / e, mean * mean + 1e-10
    tl.store(slopes + i, (2 * off / e - 2 * variance * mean / (e * below)) / below, mask=i < e)
    return variance / below
