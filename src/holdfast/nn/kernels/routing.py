"""From scores to choices, gates and balance losses on a GPU: one pass over the scores each, there and back.

t tokens, e experts, k chosen
"""

from __future__ import annotations

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.nn.kernels import kernel
from holdfast.nn.kernels.launch import launch, pieces, power_of_two

MOST = 64  # experts: the scores of a token are held in registers
TYPES = (torch.float32,)
HELD = 2048  # scores of one program


def choose(
    clean: Tensor, drawn: Tensor | None, *, noise: float, top: int, renormalise: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy scores clean + noise drawn (the clean ones themselves without any), the best (t, k) and their gates."""
    t, e = clean.shape
    noisy = clean if drawn is None else torch.empty_like(clean)
    chosen = torch.empty(t, top, dtype=torch.int64, device=clean.device)
    gates = clean.new_empty(t, top)
    rows, size = _tile(e)
    launch(_choose, (pieces(t, rows),),
        clean, clean if drawn is None else drawn, noisy, chosen, gates, noise, t, e,
        K=top, WIDE=power_of_two(top), WHOLE=renormalise, NOISY=drawn is not None, ROWS=rows, SIZE=size,
    )  # fmt: skip
    return noisy, chosen, gates


def choose_back(
    noisy: Tensor, chosen: Tensor, by_noisy: Tensor | None, by_gates: Tensor, *, renormalise: bool
) -> Tensor:
    """(t, e) the gradient of the clean scores, from that of the gates and of the noisy ones."""
    (t, e), top = noisy.shape, chosen.shape[1]
    out = torch.empty_like(noisy)
    rows, size = _tile(e)
    launch(_choose_back, (pieces(t, rows),),
        noisy, chosen, noisy if by_noisy is None else by_noisy, by_gates, out, t, e,
        K=top, WHOLE=renormalise, MORE=by_noisy is not None, ROWS=rows, SIZE=size,
    )  # fmt: skip
    return out


def balance(
    clean: Tensor, noisy: Tensor, chosen: Tensor, real: Tensor | None, *, sigma: float, tutel: bool, weight: float
) -> tuple[Tensor, ...]:
    """`weight` times the sum of the importance and the load loss, both, shares of the importance (e,), and slopes.

    Those say how each loss moves with its amounts (2, e).
    """
    (t, e), top = clean.shape, chosen.shape[1]
    rows, size = _tile(e)
    blocks = pieces(t, rows)
    parts, slopes, shares = clean.new_empty(blocks, 2, e), clean.new_empty(2, e), clean.new_empty(e)
    losses = clean.new_empty(3).unbind(0)
    launch(
        _amounts, (blocks,), clean, noisy, chosen, chosen if real is None else real, parts, t, e, 1 / sigma,
        K=top, TUTEL=tutel, SOME=real is not None, ROWS=rows, SIZE=size,
    )  # fmt: skip
    launch(
        _variation, (1,), parts, slopes, shares, *losses, blocks, e, e - 1.0 if tutel else float(e), weight,
        ROWS=rows, SIZE=size,
    )  # fmt: skip
    return *losses, shares, slopes


def balance_back(
    clean: Tensor, noisy: Tensor, chosen: Tensor, real: Tensor | None, slopes: Tensor, grad: Tensor,
    *, sigma: float, tutel: bool, detach: bool, weight: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients of the clean and the noisy scores, from that of the weighted sum; None of the latter with `detach`."""
    (t, e), top = clean.shape, chosen.shape[1]
    by_clean = torch.empty_like(clean)
    by_noisy = None if detach else torch.empty_like(clean)
    rows, size = _tile(e)
    launch(
        _balance_back, (pieces(t, rows),), clean, noisy, chosen, chosen if real is None else real, slopes,
        grad, by_clean, by_clean if by_noisy is None else by_noisy, t, e, 1 / sigma, weight,
        K=top, TUTEL=tutel, SOME=real is not None, MOVES=not detach, ROWS=rows, SIZE=size,
    )  # fmt: skip
    return by_clean, by_noisy


def _tile(experts: int) -> tuple[int, int]:
    size = max(2, power_of_two(experts))
    return max(16, HELD // size // 2), size


@kernel
def _softmax(x):
    """Of each row; places without a score hold -inf."""
    grown = tl.exp(x - tl.max(x, 1)[:, None])
    return grown / tl.sum(grown, 1)[:, None]


@kernel
def _choose(
    clean, drawn, noisy, chosen, gates, noise, t, e,
    K: tl.constexpr, WIDE: tl.constexpr, WHOLE: tl.constexpr, NOISY: tl.constexpr,
    ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)[None, :]
    at, real = row[:, None] * e + i, (row < t)[:, None] & (i < e)
    x = tl.load(clean + at, mask=real, other=0)
    if NOISY:
        x += noise * tl.load(drawn + at, mask=real, other=0)
        tl.store(noisy + at, x, mask=real)
    x = tl.where(i < e, x, -float("inf"))
    share = _softmax(x)
    left = tl.where(x == x, x, float("inf"))  # what is no number comes first and names an expert that there is
    j = tl.arange(0, WIDE)[None, :]
    best, gate = tl.zeros((ROWS, WIDE), tl.int32), tl.zeros((ROWS, WIDE), tl.float32)
    for choice in tl.static_range(K):
        here = tl.argmax(left, 1)[:, None]
        best = tl.where(j == choice, here, best)
        gate = tl.where(j == choice, tl.sum(tl.where(i == here, share, 0.0), 1)[:, None], gate)
        left = tl.where(i == here, -float("inf"), left)
    if WHOLE:
        gate = gate / tl.sum(gate, 1)[:, None]
    to, inside = row[:, None] * K + j, (row < t)[:, None] & (j < K)
    tl.store(chosen + to, best.to(tl.int64), mask=inside)
    tl.store(gates + to, gate, mask=inside)


@kernel
def _choose_back(
    noisy, chosen, by_noisy, by_gates, out, t, e,
    K: tl.constexpr, WHOLE: tl.constexpr, MORE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Gates that add up to one are a softmax over the chosen scores alone."""
    row, i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)[None, :]
    at, real = row[:, None] * e + i, (row < t)[:, None] & (i < e)
    asked, picked = tl.zeros((ROWS, SIZE), tl.float32), tl.zeros((ROWS, SIZE), tl.int32)
    for choice in tl.static_range(K):
        here = tl.load(chosen + row * K + choice, mask=row < t, other=0)[:, None] == i
        asked += tl.where(here, tl.load(by_gates + row * K + choice, mask=row < t, other=0)[:, None], 0.0)
        picked += here.to(tl.int32)
    x = tl.load(noisy + at, mask=real, other=0)
    share = _softmax(tl.where((picked > 0) if WHOLE else (i < e), x, -float("inf")))
    by = share * (asked - tl.sum(share * asked, 1)[:, None])
    if MORE:
        by += tl.load(by_noisy + at, mask=real, other=0)
    tl.store(out + at, by, mask=real)


@kernel
def _apart(noisy, chosen, score, row, t, e, steep, K: tl.constexpr):
    """How far each score stands above the last that was chosen, in standard deviations, and who that was."""
    last = tl.load(chosen + row * K + K - 1, mask=row < t, other=0)
    threshold = tl.load(noisy + row * e + last, mask=row < t, other=0)
    return (score - threshold[:, None]) * steep, last


@kernel
def _amounts(
    clean, noisy, chosen, real, parts, t, e, steep,
    K: tl.constexpr, TUTEL: tl.constexpr, SOME: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    counts = row < t
    x = tl.load(clean + row[:, None] * e + i[None, :], mask=counts[:, None] & (i < e)[None, :], other=0)
    share = _softmax(tl.where((i < e)[None, :], x, -float("inf")))
    apart, _ = _apart(noisy, chosen, share if TUTEL else x, row, t, e, steep, K)
    chance = 0.5 + 0.5 * tl.erf(apart * 0.7071067811865476)
    if SOME:
        counts = counts & (tl.load(real + row, mask=counts, other=0) != 0)
    to = parts + tl.program_id(0) * 2 * e + i
    tl.store(to, tl.sum(tl.where(counts[:, None], share, 0.0), 0), mask=i < e)
    tl.store(to + e, tl.sum(tl.where(counts[:, None], chance, 0.0), 0), mask=i < e)


@kernel
def _variation(
    parts, slopes, shares, both, first, second, blocks, e, freedom, weight, ROWS: tl.constexpr, SIZE: tl.constexpr
):
    """One program: the amounts of each loss, (std / mean)^2 of them, and the derivative of that."""
    i, added = tl.arange(0, SIZE), 0.0
    for which in tl.static_range(2):
        total = tl.zeros((ROWS, SIZE), tl.float32)
        for begin in range(0, blocks, ROWS):
            block = begin + tl.arange(0, ROWS)
            at = (block[:, None] * 2 + which) * e + i[None, :]
            total += tl.load(parts + at, mask=(block < blocks)[:, None] & (i < e)[None, :], other=0)
        amount = tl.sum(total, 0)
        whole = tl.sum(amount, 0)
        mean = whole / e
        off = tl.where(i < e, amount - mean, 0.0)
        variance, below = tl.sum(off * off, 0) / freedom, mean * mean + 1e-10
        slope = (2 * off / freedom - 2 * variance * mean / (e * below)) / below
        tl.store(slopes + which * e + i, slope, mask=i < e)
        if which == 0:
            tl.store(first, variance / below)
            tl.store(shares + i, amount / whole, mask=i < e)
        else:
            tl.store(second, variance / below)
        added += variance / below
    tl.store(both, weight * added)


@kernel
def _balance_back(
    clean, noisy, chosen, real, slopes, grad, by_clean, by_noisy, t, e, steep, weight,
    K: tl.constexpr, TUTEL: tl.constexpr, SOME: tl.constexpr, MOVES: tl.constexpr,
    ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
    at, inside = row[:, None] * e + i[None, :], (row < t)[:, None] & (i < e)[None, :]
    x = tl.load(clean + at, mask=inside, other=0)
    share = _softmax(tl.where((i < e)[None, :], x, -float("inf")))
    apart, last = _apart(noisy, chosen, share if TUTEL else x, row, t, e, steep, K)
    scale = weight * tl.load(grad)
    by_share = scale * tl.load(slopes + i, mask=i < e, other=0)[None, :]
    by_chance = scale * tl.load(slopes + e + i, mask=i < e, other=0)[None, :]
    by_score = by_chance * steep * 0.3989422804014327 * tl.exp(-0.5 * apart * apart)
    if TUTEL:
        by_share += by_score
    by = share * (by_share - tl.sum(share * by_share, 1)[:, None])
    if not TUTEL:
        by += by_score
    if SOME:
        counts = tl.load(real + row, mask=row < t, other=0) != 0
        by = tl.where(counts[:, None], by, 0.0)
        by_score = tl.where(counts[:, None], by_score, 0.0)
    tl.store(by_clean + at, by, mask=inside)
    if MOVES:
        threshold = -tl.sum(by_score, 1)[:, None]
        tl.store(by_noisy + at, tl.where(last[:, None] == i[None, :], threshold, 0.0), mask=inside)
