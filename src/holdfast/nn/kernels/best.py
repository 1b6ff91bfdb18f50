"""The k best scores of each row on a GPU, and the k best sums of two lists: by the bits of the k-th, without sorting.

r rows, n scores, k chosen
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import kernel
from holdfast.nn.kernels.launch import launch, power_of_two

LONGEST = 4096  # a row of scores, and all sums of a pair of lists, are held in registers
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(..., k) the best scores of each row (..., n) in fp32, and where they stand; in the order of the row."""
    *rows, n = scores.shape
    values = torch.empty(*rows, k, dtype=torch.float32, device=scores.device)
    places = torch.empty(*rows, k, dtype=torch.int32, device=scores.device)
    size = power_of_two(n)
    low = 16 if scores.dtype == torch.bfloat16 else 0  # bits that are empty once a score is written in fp32
    grid = (scores.numel() // n,)
    launch(_best, grid, (scores.contiguous(), values, places), n, k, SIZE=size, LOW=low, num_warps=max(1, size // 1024))
    return values, places


def best_sums(values: Tensor, places: Tensor, k: int) -> Tensor:
    """(2, r, k) the places of the k best of all k x k sums of two lists; values and places are (2, r, k)."""
    r = values.shape[1]
    chosen = torch.empty(2, r, k, dtype=torch.int64, device=values.device)
    side = power_of_two(k)
    launch(_best_sums, (r,), (values, places, chosen), k, SIDE=side, num_warps=max(1, side * side // 1024))
    return chosen


@kernel
def _rank(x):
    """Whole numbers in the order of the fp32 numbers; none is 0 but for a number that is none."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@kernel
def _kept(rank, k, BITS: tl.constexpr):
    """Which are the k highest: the k-th is found bit by bit; among equals the first come first."""
    kth = tl.full((), 0, tl.uint32)
    for i in tl.static_range(BITS):
        higher = kth | (tl.full((), 1, tl.uint32) << (BITS - 1 - i))
        kth = tl.where(tl.sum((rank >= higher).to(tl.int32), 0) >= k, higher, kth)
    above, equal = rank > kth, (rank == kth).to(tl.int32)
    room = k - tl.sum(above.to(tl.int32), 0)
    return above | ((equal > 0) & (tl.cumsum(equal, 0) <= room))


@kernel
def _best(scores, values, places, n, k, SIZE: tl.constexpr, LOW: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    score = tl.load(scores + r * n + i, mask=i < n, other=0).to(tl.float32)
    keep = _kept(tl.where(i < n, _rank(score) >> LOW, 0), k, 32 - LOW)
    to = r * k + tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(values + to, score, mask=keep)
    tl.store(places + to, i, mask=keep)


@kernel
def _best_sums(values, places, chosen, k, SIDE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * k
    second = first + tl.num_programs(0).to(tl.int64) * k
    pair = tl.arange(0, SIDE * SIDE)
    i, j = pair // SIDE, pair % SIDE
    real = (i < k) & (j < k)
    total = tl.load(values + first + i, mask=real, other=0) + tl.load(values + second + j, mask=real, other=0)
    keep = _kept(tl.where(real, _rank(total), 0), k, 32)
    to = tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(chosen + first + to, tl.load(places + first + i, mask=keep, other=0).to(tl.int64), mask=keep)
    tl.store(chosen + second + to, tl.load(places + second + j, mask=keep, other=0).to(tl.int64), mask=keep)
