"""Kernels of memories: top-k selection and weighted sums of table rows.

h heads, b batch, m slots or table rows, k chosen, d width, r rows of scores, n scores per row or choices b k
"""

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.accel.registry import ceil_div, kernel, launch, power_of_two

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# one program holds in registers: the scores or pair sums it selects from, a table row
MAX_CANDIDATES, MAX_WIDTH = 4096, 2048
MAX_GROUP = 8  # scores of which the largest is compared first
PER_PROGRAM = 8  # table rows, because starting a program takes as long as one row (measured on an H200)


def best_pairs(scores: Tensor, k: int, heads: int) -> tuple[Tensor, Tensor]:
    """Return the k largest sums of one score per list (2, h b, n): softmax weights in fp32 and pairs, (b, h, k) both.

    The pair of the scores i and j is i n + j. Only the k best scores of each list are needed. In sorted lists, the pair
    of the i-th and j-th best, counted from 1, has i j - 1 other pairs that are at least as good, so pairs with i j > k
    are not needed either.
    """
    _, r, n = scores.shape
    values = torch.empty(2, r, k, dtype=torch.float32, device=scores.device)
    indices = torch.empty(2, r, k, dtype=torch.int32, device=scores.device)
    # groups small enough that the k with the largest maxima leave out most of the row
    size, group = power_of_two(n), max(1, min(MAX_GROUP, power_of_two(n // (4 * k) + 1) // 2))
    low = 16 if scores.dtype == torch.bfloat16 else 0  # bits that are zero after the conversion to fp32
    constants = {"SIZE": size, "GROUP": group, "SIDE": power_of_two(k), "LOW": low, "num_warps": max(1, size // 1024)}
    launch(_top_scores, (2 * r,), (scores.contiguous(), values, indices), n, k, **constants)
    # the selected scores are unsorted here; `_top_sums` sorts them and selects among their pairs
    weights = values.new_empty(r // heads, heads, k)
    pairs = torch.empty(r // heads, heads, k, dtype=torch.int64, device=scores.device)
    bits = max(1, (k - 1).bit_length())
    constants = {"BITS": bits, "LEVELS": power_of_two(bits + 1), "num_warps": 1}
    launch(_top_sums, (r,), (values, indices, weights, pairs), n, k, heads, **constants)
    return weights, pairs


def best_pairs_gradient(weights: Tensor, pairs: Tensor, grad: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Return the gradient of the scores (2, h b, n) from that of the weights (b, h, k), always added in one order."""
    b, heads, k = weights.shape
    out = torch.empty(2, heads * b, n, dtype=dtype, device=grad.device)
    constants = {"SIDE": power_of_two(k), "SIZE": power_of_two(n), "num_warps": 1}
    launch(_best_pairs_gradient, (heads * b,), (weights, pairs, grad.contiguous(), out), n, k, heads, **constants)
    return out


@kernel
def _rank(x):
    """Map fp32 numbers to unsigned integers of the same order; only NaN may map to 0."""
    # negative numbers are ordered the other way round as bits: invert those, then move all above zero
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@kernel
def _larger(a, b):
    """Return the larger number, NaN if one of them is NaN, so that a diverged key is selected."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@kernel
def _top(rank, k, BITS: tl.constexpr):
    """Mark the k highest ranks, and return their positions in a list: the k-th is determined bit by bit.

    Among equals the first win. One running sum counts those above the k-th in its low half, its equals in the high one.
    """
    # from the highest bit down: a bit of the k-th rank is 1 if at least k ranks are that large; no sort is needed
    kth = tl.full((), 0, tl.uint32)
    for i in tl.static_range(BITS):
        higher = kth | (tl.full((), 1, tl.uint32) << (BITS - 1 - i))
        kth = tl.where(tl.sum((rank >= higher).to(tl.int32), 0) >= k, higher, kth)
    # equals of the k-th fill the remaining room in their order, so that the selection is always the same
    above, equal = (rank > kth).to(tl.int32), (rank == kth).to(tl.int32)
    room = k - tl.sum(above, 0)
    counts = tl.cumsum(above + (equal << 16), 0)
    equals = counts >> 16
    selected = (above > 0) | ((equal > 0) & (equals <= room))
    return selected, (counts & 0xFFFF) + tl.minimum(equals, room) - 1


@kernel
def _top_scores(
    scores, values, indices, n, k, SIZE: tl.constexpr, GROUP: tl.constexpr, SIDE: tl.constexpr, LOW: tl.constexpr
):
    """One program per row; only the k groups with the largest maxima can contain the k largest scores."""
    r = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    if GROUP > 1:
        within, j = tl.arange(0, GROUP)[None, :], tl.arange(0, SIDE)
        each = tl.arange(0, SIZE // GROUP)
        at = each[:, None] * GROUP + within
        score = tl.load(scores + r * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
        largest = tl.reduce(score, 1, _larger)
        best, to = _top(tl.where(each * GROUP < n, _rank(largest) >> LOW, 0), k, 32 - LOW)
        tl.store(indices + r * k + to, each, mask=best)
        tl.debug_barrier()  # what other threads of this program wrote is read now
        group = tl.load(indices + r * k + j, mask=j < k, other=SIZE)
        tl.debug_barrier()
        i = tl.reshape(group[:, None] * GROUP + within, (SIDE * GROUP,))
    score = tl.load(scores + r * n + i, mask=i < n, other=0).to(tl.float32)
    selected, to = _top(tl.where(i < n, _rank(score) >> LOW, 0), k, 32 - LOW)
    tl.store(values + r * k + to, score, mask=selected)
    tl.store(indices + r * k + to, i, mask=selected)


@kernel
def _top_sums(values, indices, weights, pairs, n, k, heads, BITS: tl.constexpr, LEVELS: tl.constexpr):
    """Pairs per level: those of the best 2^level to 2^(level + 1) - 1 with the 2^(BITS - level) best of the others."""
    r = tl.program_id(0).to(tl.int64)
    b = tl.num_programs(0) // heads
    first = r * k
    second = first + tl.num_programs(0).to(tl.int64) * k
    _sort(values + first, indices + first, k, 1 << BITS)
    _sort(values + second, indices + second, k, 1 << BITS)
    tl.debug_barrier()  # what other threads of this program wrote is read now
    # all pairs with i j <= k are among about k log k, not k^2: level l has 2^l values of i, each with k / 2^l of j
    pair = tl.arange(0, LEVELS << BITS)
    level, within = pair >> BITS, pair & ((1 << BITS) - 1)
    most = tl.maximum(BITS - level, 0)  # bits of j
    i, j = (1 << level) - 1 + (within >> most), within & ((1 << most) - 1)
    real = (level <= BITS) & (i < k) & (j < k)
    total = tl.load(values + first + i, mask=real, other=0) + tl.load(values + second + j, mask=real, other=0)
    selected, to = _top(tl.where(real, _rank(total), 0), k, 32)
    # softmax of the selected sums, in the layout (b, h, k) of the results, while rows are (h, b)
    e = tl.where(selected, tl.exp(total - tl.max(tl.where(selected, total, -float("inf")), 0)), 0)
    to += ((r % b) * heads + r // b) * k
    tl.store(weights + to, e / tl.sum(e, 0), mask=selected)
    left = tl.load(indices + first + i, mask=selected, other=0).to(tl.int64)
    tl.store(pairs + to, left * n + tl.load(indices + second + j, mask=selected, other=0), mask=selected)


@kernel
def _sort(values, indices, k, SIDE: tl.constexpr):
    """Sort values in descending order, and their indices with them; among equals the first stays first."""
    i = tl.arange(0, SIDE)
    value = tl.load(values + i, mask=i < k, other=0)
    index = tl.load(indices + i, mask=i < k, other=0)
    rank = tl.where(i < k, _rank(value), 0)
    theirs, mine = rank[:, None], rank[None, :]
    # the position of a value is the number of values ahead of it: k^2 comparisons without a loop
    ahead = (theirs > mine) | ((theirs == mine) & (i[:, None] < i[None, :]))
    to = tl.sum(ahead.to(tl.int32), 0)  # sums over the first axis need no exchange between threads
    tl.debug_barrier()
    tl.store(values + to, value, mask=i < k)
    tl.store(indices + to, index, mask=i < k)


@kernel
def _best_pairs_gradient(weights, pairs, grad, out, n, k, heads, SIDE: tl.constexpr, SIZE: tl.constexpr):
    """One program per row of both lists; gradients of equal positions are added first, over the first axis."""
    r = tl.program_id(0).to(tl.int64)
    b = tl.num_programs(0) // heads
    i, j = tl.arange(0, SIZE), tl.arange(0, SIDE)
    at = ((r % b) * heads + r // b) * k + j
    p = tl.load(weights + at, mask=j < k, other=0)
    g = tl.load(grad + at, mask=j < k, other=0).to(tl.float32)
    # backward pass of the softmax; each score of both lists may be part of several chosen pairs
    g = p * (g - tl.sum(p * g, 0))
    pair = tl.load(pairs + at, mask=j < k, other=0).to(tl.int32)
    row = out + r * n
    other = row + tl.num_programs(0).to(tl.int64) * n
    tl.store(row + i, tl.zeros((SIZE,), tl.float32), mask=i < n)
    tl.store(other + i, tl.zeros((SIZE,), tl.float32), mask=i < n)
    tl.debug_barrier()  # the zeros of other threads are written before the sums
    # choices of the same score add up before the store: all of them write the same sum, in any order
    left, right = pair // n, pair % n
    tl.store(row + left, tl.sum(tl.where(left[:, None] == left[None, :], g[:, None], 0), 0), mask=j < k)
    tl.store(other + right, tl.sum(tl.where(right[:, None] == right[None, :], g[:, None], 0), 0), mask=j < k)


def gather(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Return sum_k weights_bk table[rows_bk] (b, d), summed in fp32."""
    (b, k), d = rows.shape, table.shape[1]
    out = table.new_empty(b, d)
    cols = min(1024, power_of_two(d))
    chunks, at_once = ceil_div(d, cols), max(1, min(4, 1024 // cols))
    launch(_gather, (b * chunks,), (table, rows, weights, out), k, d, chunks, ROWS=at_once, COLS=cols, num_warps=4)
    return out


def gradients(table: Tensor, rows: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the table and of the weights.

    The choices are sorted by row, so every row is read and written once, its sum always has the same order, and no two
    programs write to the same address.
    """
    (b, k), (m, d) = rows.shape, table.shape
    row, order = rows.reshape(-1).to(torch.int32).sort(stable=True)  # (n,) both
    grad_weights = torch.empty(b, k, dtype=torch.float32, device=table.device)
    # where the choices of each row begin and end in the sorted list; 0 and 0 for a row without choices
    starts, ends = torch.zeros(2, m, dtype=torch.int32, device=row.device)
    launch(_edges, (ceil_div(len(row), 1024),), (row, starts, ends), len(row), BLOCK=1024)
    # every row is written, with zeros where nothing was chosen, so that the memory needs no initial zeros
    grad_rows = table.new_empty(m, d)
    tensors = (table, grad, order, weights, starts, ends, grad_rows, grad_weights)
    programs, warps = ceil_div(m, PER_PROGRAM), 1 if d <= 1024 else 4
    launch(_row_gradients, (programs,), tensors, m, d, K=k, COLS=power_of_two(d), num_warps=warps)
    return grad_rows, grad_weights


@kernel
def _gather(table, rows, weights, out, k, d, chunks, ROWS: tl.constexpr, COLS: tl.constexpr):
    """One program per query and chunk of columns."""
    b = (tl.program_id(0) // chunks).to(tl.int64)
    cols = (tl.program_id(0) % chunks) * COLS + tl.arange(0, COLS)
    inside = cols < d
    total = tl.zeros((ROWS, COLS), tl.float32)
    for first in range(0, k, ROWS):
        j = first + tl.arange(0, ROWS)
        row = tl.load(rows + b * k + j, mask=j < k, other=0).to(tl.int64)
        weight = tl.load(weights + b * k + j, mask=j < k, other=0).to(tl.float32)
        real = (j < k)[:, None] & inside[None, :]
        tile = tl.load(table + row[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        total += weight[:, None] * tile
    tl.store(out + b * d + cols, tl.sum(total, 0), mask=inside)


@kernel
def _edges(row, starts, ends, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(row + i, mask=i < n, other=-1)
    before = tl.load(row + i - 1, mask=(i > 0) & (i < n), other=-1)
    after = tl.load(row + i + 1, mask=i + 1 < n, other=-1)
    is_first, is_last = (i < n) & (here != before), (i < n) & (here != after)
    tl.store(starts + here, i, mask=is_first)
    tl.store(ends + here, i + 1, mask=is_last)


@kernel
def _row_gradients(
    table, grad, order, weights, starts, ends, grad_rows, grad_weights, m, d, K: tl.constexpr, COLS: tl.constexpr
):
    """One program per several table rows: it reads each row once, and all gradients that reach it."""
    count = tl.cdiv(m, tl.num_programs(0))
    first = tl.program_id(0).to(tl.int64) * count
    cols = tl.arange(0, COLS)
    inside = cols < d
    for row in range(first, tl.minimum(first + count, m)):
        start, end = tl.load(starts + row), tl.load(ends + row)
        value = tl.load(table + row * d + cols, mask=inside & (end > start), other=0).to(tl.float32)
        total = tl.zeros((COLS,), tl.float32)
        for j in range(start, end):
            choice = tl.load(order + j).to(tl.int32)
            g = tl.load(grad + (choice // K).to(tl.int64) * d + cols, mask=inside, other=0).to(tl.float32)
            tl.store(grad_weights + choice, tl.sum(g * value, 0))
            total += tl.load(weights + choice).to(tl.float32) * g
        tl.store(grad_rows + row * d + cols, total, mask=inside)
