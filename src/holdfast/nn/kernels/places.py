"""What `route` counted, put to use on a GPU: a stable sort of pairs by expert, and in passing both balance losses.

How many pairs lie before each block is known from the counts; ranks within it make the rest of the sort.

t tokens, k chosen, s = t k pairs, e experts
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import ceil_div, kernel, launch, power_of_two
from holdfast.nn.kernels.routes import ROWS

FEW = 4096  # so many counts each program adds up itself, which is sooner than a running sum of all
HELD = 2048  # of them at once, for each expert


def places(
    chosen: Tensor, counts: Tensor, notes: Tensor, experts: int, *, weight: float, tutel: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Of what `route` leaves: order, place, token and expert (s,) and ends (e,); then what is told, all in fp32.

    First choices come before second ones. Told are `weight` times the balance losses, both of them, the share of each
    expert (e,) in the importance, and its share of the pairs; with a weight of 0 the last alone holds something. The
    slopes of both losses go to the notes.
    """
    (t, k), device = chosen.shape, chosen.device
    blocks, size = ceil_div(t, ROWS), max(2, power_of_two(experts))
    few = counts.shape[0] <= FEW
    if not few:
        counts = counts.cumsum(0, dtype=torch.int32)
    found = [torch.empty(t * k, dtype=torch.int64, device=device) for _ in range(4)]
    ends = torch.empty(experts, dtype=torch.int32, device=device)
    losses, shares = [notes.new_empty(()) for _ in range(3)], [notes.new_empty(experts) for _ in range(2)]
    launch(
        _place, (blocks, k), (chosen, counts, notes, *found, ends, *losses, *shares), t, k, experts,
        max(1.0, experts - 1.0) if tutel else float(experts), weight,
        ADDED=not few, WEIGHED=weight > 0, CHUNK=HELD // size, BLOCK=ROWS, SIZE=size,
        num_warps=8 if size > 16 else 4,
    )  # fmt: skip
    return (*found, ends), (*losses, *shares)


@kernel
def _before(counts, slot, slots, ADDED: tl.constexpr, CHUNK: tl.constexpr):
    """How many pairs lie before each of these slots; ADDED: the counts are running sums already."""
    if ADDED:
        return tl.load(counts + slot - 1, mask=(slot > 0) & (slot <= slots), other=0)
    found = tl.zeros_like(slot)
    for begin in range(0, slots, CHUNK):
        at = begin + tl.arange(0, CHUNK)
        count = tl.load(counts + at, mask=at < slots, other=0)
        found += tl.sum(tl.where(at[:, None] < slot[None, :], count[:, None], 0), 0)
    return found


@kernel
def _place(
    chosen, counts, notes, order, place, token, expert, ends, both, first, second, importance, shares,
    t, k, e, freedom, weight,
    ADDED: tl.constexpr, WEIGHED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Counts lie expert after expert, choice after choice, block after block, as the pairs will."""
    block, choice, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    row, i = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64), tl.arange(0, SIZE)
    mine = tl.load(chosen + row * k + choice, mask=row < t, other=SIZE)
    member = (mine[:, None] == i[None, :]).to(tl.int32)
    slots = e * k * blocks
    before = _before(counts, (i * k + choice) * blocks + block, slots, ADDED, CHUNK)
    to = tl.sum(member * (tl.cumsum(member, 0) - 1 + before[None, :]), 1)
    pair = choice * t + row
    tl.store(place + pair, to.to(tl.int64), mask=row < t)
    tl.store(order + to, pair, mask=row < t)
    tl.store(token + to, row, mask=row < t)
    tl.store(expert + to, mine, mask=row < t)
    if block + choice == 0:
        end = _before(counts, (i + 1) * k * blocks, slots, ADDED, CHUNK)
        tl.store(ends + i, end, mask=i < e)
        tl.store(shares + i, (end - before).to(tl.float32) / (t * k), mask=i < e)
        if WEIGHED:
            amounts = notes + t + e
            slopes = amounts + blocks * 2 * e
            value = _variation(amounts, blocks, slopes, e, freedom, BLOCK, SIZE)
            tl.store(first, value)
            more = _variation(amounts + e, blocks, slopes + e, e, freedom, BLOCK, SIZE)
            tl.store(second, more)
            tl.store(both, weight * (value + more))
            amount = _total(amounts, blocks, e, BLOCK, SIZE)
            tl.store(importance + i, amount / tl.sum(amount, 0), mask=i < e)


@kernel
def _total(parts, blocks, e, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """(e,) of the amounts of all blocks, which stand 2 e apart."""
    i, total = tl.arange(0, SIZE), tl.zeros((ROWS, SIZE), tl.float32)
    for begin in range(0, blocks, ROWS):
        block = begin + tl.arange(0, ROWS)
        here = (block < blocks)[:, None] & (i < e)[None, :]
        total += tl.load(parts + block[:, None] * 2 * e + i[None, :], mask=here, other=0)
    return tl.sum(total, 0)


@kernel
def _variation(parts, blocks, slopes, e, freedom, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """(std / mean)^2 of the amounts; its derivative goes to the slopes."""
    i, amount = tl.arange(0, SIZE), _total(parts, blocks, e, ROWS, SIZE)
    mean = tl.sum(amount, 0) / e
    off = tl.where(i < e, amount - mean, 0.0)
    variance, below = tl.sum(off * off, 0) / freedom, mean * mean + 1e-10
    tl.store(slopes + i, (2 * off / freedom - 2 * variance * mean / (e * below)) / below, mask=i < e)
    return variance / below
