"""Weighted sums of rows on a GPU, forward and backward, each in one pass over the rows that were chosen.

b batch, k rows chosen, m rows, d width, n = b k choices, s segments (choices of the same row)
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import kernel
from holdfast.nn.kernels.launch import launch, pieces, power_of_two

WIDEST = 2048  # a segment's row is held in registers
TYPES = (torch.float32, torch.bfloat16, torch.float16)
SEGMENTS = 1  # of one program; more of them wait for the longest (measured on an H200, as are the tiles)


def gather(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """(b, d) sum_k weights_bk table[rows_bk], summed in fp32."""
    (b, k), d = rows.shape, table.shape[1]
    out = table.new_empty(b, d)
    cols = min(1024, power_of_two(d))
    chunks = pieces(d, cols)
    launch(_gather, (b * chunks,), (table, rows, weights, out), k, d, chunks, ROWS=4, COLS=cols, num_warps=4)
    return out


def dots(table: Tensor, rows: Tensor, grad: Tensor) -> Tensor:
    """(b, k) <grad_b, table[rows_bk]>: the gradient of the weights where the table itself needs none."""
    (b, k), d = rows.shape, table.shape[1]
    out = torch.empty(b, k, dtype=torch.float32, device=table.device)
    cols = min(256, power_of_two(d))
    launch(_dots, (b,), (table, rows, grad, out), k, d, ROWS=16, COLS=cols, num_warps=4)
    return out


def gradients(table: Tensor, rows: Tensor, weights: Tensor, grad: Tensor, *, sparse: bool) -> tuple[Tensor, Tensor]:
    """Gradients of the table, dense or coalesced, and of the weights.

    The choices are sorted by row, so that every row is read and written once, its sum has always the same
    order, and no two programs write the same place.
    """
    (b, k), (m, d) = rows.shape, table.shape
    row, order = rows.reshape(-1).to(torch.int32).sort(stable=True)  # (n,) both
    grad_weights = torch.empty(b, k, dtype=torch.float32, device=table.device)
    if sparse:
        chosen, counts = row.unique_consecutive(return_counts=True)  # (s,) both
        ends = counts.cumsum(0)
        starts, segments = ends - counts, len(chosen)
    else:
        chosen, (starts, ends), segments = row, _edges_of(row, m), m  # a row that nobody chose is an empty segment
    grad_rows = table.new_empty(segments, d)
    launch(_segments, (pieces(segments, SEGMENTS),),
        (table, grad, order, weights, chosen, starts, ends, grad_rows, grad_weights), segments, k, d,
        SPARSE=sparse, SEGMENTS=SEGMENTS, COLS=power_of_two(d), num_warps=1,
    )  # fmt: skip
    if not sparse:
        return grad_rows, grad_weights
    # the rows are sorted and differ: saying so spares the optimizer the work of finding it out
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        return torch.sparse_coo_tensor(chosen.long()[None], grad_rows, (m, d), is_coalesced=True), grad_weights


def _edges_of(row: Tensor, m: int) -> Tensor:
    """(2, m) where the choices of each row begin and end in the sorted list; 0 and 0 where there are none."""
    edges = torch.zeros(2, m, dtype=torch.int32, device=row.device)
    launch(_edges, (pieces(len(row), 1024),), (row, edges[0], edges[1]), len(row), BLOCK=1024)
    return edges


@kernel
def _gather(table, rows, weights, out, k, d, chunks, ROWS: tl.constexpr, COLS: tl.constexpr):
    """One program a query and a stretch of columns."""
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
def _dots(table, rows, grad, out, k, d, ROWS: tl.constexpr, COLS: tl.constexpr):
    """One program a query."""
    b = tl.program_id(0).to(tl.int64)
    for first in range(0, k, ROWS):
        j = first + tl.arange(0, ROWS)
        row = tl.load(rows + b * k + j, mask=j < k, other=0).to(tl.int64)
        total = tl.zeros((ROWS, COLS), tl.float32)
        for left in range(0, d, COLS):
            cols = left + tl.arange(0, COLS)
            g = tl.load(grad + b * d + cols, mask=cols < d, other=0).to(tl.float32)
            real = (j < k)[:, None] & (cols < d)[None, :]
            total += g[None, :] * tl.load(table + row[:, None] * d + cols[None, :], mask=real, other=0).to(tl.float32)
        tl.store(out + b * k + j, tl.sum(total, 1), mask=j < k)


@kernel
def _edges(row, starts, ends, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(row + i, mask=i < n, other=-1)
    before = tl.load(row + i - 1, mask=(i > 0) & (i < n), other=-1)
    after = tl.load(row + i + 1, mask=i + 1 < n, other=-1)
    tl.store(starts + here, i, mask=(i < n) & (here != before))
    tl.store(ends + here, i + 1, mask=(i < n) & (here != after))


@kernel
def _segments(
    table, grad, order, weights, chosen, starts, ends, grad_rows, grad_weights, segments, k, d,
    SPARSE: tl.constexpr, SEGMENTS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """One program a few segments: each reads its row once, and all gradients that it meets."""
    s = tl.program_id(0).to(tl.int64) * SEGMENTS + tl.arange(0, SEGMENTS)
    start = tl.load(starts + s, mask=s < segments, other=0)
    end = tl.load(ends + s, mask=s < segments, other=0)
    row = s
    if SPARSE:
        row = tl.load(chosen + s, mask=s < segments, other=0).to(tl.int64)
    cols = tl.arange(0, COLS)[None, :]
    read = (end > start)[:, None] & (cols < d)
    value = tl.load(table + row[:, None] * d + cols, mask=read, other=0).to(tl.float32)
    total = tl.zeros((SEGMENTS, COLS), tl.float32)
    longest = tl.max(end - start, 0)
    for j in range(longest):
        there = start + j < end
        choice = tl.load(order + start + j, mask=there, other=0)
        weight = tl.load(weights + choice, mask=there, other=0).to(tl.float32)
        at = (choice // k)[:, None] * d + cols
        g = tl.load(grad + at, mask=there[:, None] & (cols < d), other=0).to(tl.float32)
        tl.store(grad_weights + choice, tl.sum(g * value, 1), mask=there)
        total += weight[:, None] * g
    tl.store(grad_rows + s[:, None] * d + cols, total, mask=(s < segments)[:, None] & (cols < d))
