"""A stable sort of pairs by expert on a GPU by counting: how many lie before each block, then ranks within it.

t tokens, k chosen, s = t k pairs, e experts
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import kernel
from holdfast.nn.kernels.launch import launch, pieces, power_of_two

MOST = 64  # experts: a block is compared with each
TYPES = (torch.int64,)
BLOCK = 256
FEW = 4096  # so many counts each program adds up itself, which is sooner than a running sum of all
HELD = 2048  # of them at once, for each expert


def places(chosen: Tensor, experts: int) -> tuple[Tensor, ...]:
    """Of chosen (t, k): order, place, token and expert (s,), ends and shares of the pairs (e,).

    First choices come before second ones.
    """
    (t, k), device = chosen.shape, chosen.device
    blocks, size = pieces(t, BLOCK), max(2, power_of_two(experts))
    tile = {"BLOCK": BLOCK, "SIZE": size, "num_warps": 8 if size > 16 else 4}
    counts = torch.empty(experts * k * blocks, dtype=torch.int32, device=device)
    launch(_count, (blocks, k), chosen, counts, t, k, experts, **tile)
    few = len(counts) <= FEW
    if not few:
        counts = counts.cumsum(0, dtype=torch.int32)
    order, place, token, expert = torch.empty(4, t * k, dtype=torch.int64, device=device).unbind(0)
    ends = torch.empty(experts, dtype=torch.int32, device=device)
    shares = torch.empty(experts, dtype=torch.float32, device=device)
    launch(
        _place, (blocks, k), chosen, counts, order, place, token, expert, ends, shares, t, k, experts,
        ADDED=not few, CHUNK=HELD // size, **tile,
    )  # fmt: skip
    return order, place, token, expert, ends, shares


@kernel
def _count(chosen, counts, t, k, e, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    block, choice = tl.program_id(0), tl.program_id(1)
    row, i = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SIZE)
    expert = tl.load(chosen + row.to(tl.int64) * k + choice, mask=row < t, other=SIZE)
    count = tl.sum((expert[:, None] == i[None, :]).to(tl.int32), 0)
    tl.store(counts + (i * k + choice) * tl.num_programs(0) + block, count, mask=i < e)


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
    chosen, counts, order, place, token, expert, ends, shares, t, k, e,
    ADDED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr,
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
