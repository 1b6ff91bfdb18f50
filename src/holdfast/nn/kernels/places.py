"""A stable sort of pairs by expert on a GPU by counting: how many lie before each block, then ranks within it.

t tokens, k chosen, s = t k pairs, e experts
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import kernel, on_its_device

MOST = 64  # experts: a block is compared with each
TYPES = (torch.int64,)
BLOCK = 256


@on_its_device
def places(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of chosen (t, k): order, place, token and expert (s,) and ends (e,), first choices before second ones."""
    t, k = chosen.shape
    blocks, size = triton.cdiv(t, BLOCK), max(2, triton.next_power_of_2(experts))
    tile = {"BLOCK": BLOCK, "SIZE": size, "num_warps": 8 if size > 16 else 4}
    counts = torch.empty(experts, k, blocks, dtype=torch.int32, device=chosen.device)
    _count[(blocks, k)](chosen, counts, t, k, experts, **tile)
    # expert after expert, choice after choice, block after block, as the pairs will lie
    counted = counts.view(-1).cumsum(0, dtype=torch.int32)
    order, place, token, expert = torch.empty(4, t * k, dtype=torch.int64, device=chosen.device).unbind(0)
    ends = torch.empty(experts, dtype=torch.int32, device=chosen.device)
    _place[(blocks, k)](chosen, counted, order, place, token, expert, ends, t, k, experts, **tile)
    return order, place, token, expert, ends


@kernel
def _count(chosen, counts, t, k, e, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    block, choice = tl.program_id(0), tl.program_id(1)
    row, i = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SIZE)
    expert = tl.load(chosen + row.to(tl.int64) * k + choice, mask=row < t, other=SIZE)
    count = tl.sum((expert[:, None] == i[None, :]).to(tl.int32), 0)
    tl.store(counts + (i * k + choice) * tl.num_programs(0) + block, count, mask=i < e)


@kernel
def _place(chosen, counted, order, place, token, expert, ends, t, k, e, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    block, choice, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    row, i = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64), tl.arange(0, SIZE)
    mine = tl.load(chosen + row * k + choice, mask=row < t, other=SIZE)
    member = (mine[:, None] == i[None, :]).to(tl.int32)
    slot = (i * k + choice) * blocks + block
    before = tl.load(counted + slot - 1, mask=(i < e) & (slot > 0), other=0)
    to = tl.sum(member * (tl.cumsum(member, 0) - 1 + before[None, :]), 1)
    pair = choice * t + row
    tl.store(place + pair, to.to(tl.int64), mask=row < t)
    tl.store(order + to, pair, mask=row < t)
    tl.store(token + to, row, mask=row < t)
    tl.store(expert + to, mine, mask=row < t)
    if block + choice == 0:
        end = tl.load(counted + (i + 1) * k * blocks - 1, mask=i < e, other=0)
        tl.store(ends + i, end, mask=i < e)
