"""Reads of memories: attention over slots, weighted sums of chosen rows, and the choice of product keys.

Shapes: b batch, h heads, m slots, k chosen slots, q key width, d width; r = h b rows of n scores per half key.
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


def scores(query: Tensor, keys: Tensor, *, similarity: str = "dot", temperature: float = 1.0) -> Tensor:
    r"""Return the scores :math:`\langle q_h, k_{hm} \rangle` (h, b, m) of queries (b, h, q) with keys.

    Keys are (h, m, q), or (m, q) shared by all heads. `scaled` divides by :math:`\sqrt q`, `cosine` normalises both.
    """
    if similarity == "cosine":
        query, keys = F.normalize(query, dim=-1), F.normalize(keys, dim=-1)
    scale = temperature * (math.sqrt(query.shape[-1]) if similarity == "scaled" else 1.0)
    if scale != 1.0:
        query = query / scale  # smaller than the scores
    by_head = query.transpose(0, 1)  # (h, b, q)
    return torch.bmm(by_head, keys.transpose(1, 2)) if keys.dim() == 3 else by_head @ keys.T


def attend(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\sum_h \sum_m p_{hm} v_m` (b, d) for logits (h, b, m), and their softmax p (b, h, m).

    Values are (m, d), or (h, m, d) with values of their own per head.
    """
    weights = logits.softmax(dim=-1)  # (h, b, m)
    if values.dim() == 2:
        return weights.sum(dim=0) @ values, weights.transpose(0, 1)  # one product: summed over heads first
    weights = weights.transpose(0, 1)  # (b, h, m)
    return weights.flatten(1) @ values.flatten(0, 1), weights


def weighted_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    r"""Return :math:`\sum_k w_{bk} t_{r_{bk}}` (b, d) in the precision of the table t (m, d)."""
    return F.embedding_bag(rows, table, mode="sum", per_sample_weights=weights.to(table.dtype))


def select_pairs(scores: Tensor, k: int, *, heads: int) -> tuple[Tensor, Tensor]:
    """Return the softmax weights and the slots (b, h, k) of the k best pairs per head; `scores` is (2, h b, n)."""
    n = scores.shape[-1]
    with torch.no_grad():
        positions = best_pairs(scores, k)  # (2, h b, k)
    # the chosen scores are gathered again, so that the selection itself needs no gradient
    logits = scores.gather(-1, positions).sum(dim=0, dtype=torch.promote_types(scores.dtype, torch.float32))
    slots = positions[0] * n + positions[1]
    weights, slots = (rows.view(heads, -1, k).transpose(0, 1) for rows in (logits.softmax(dim=-1), slots))
    return weights, slots


def best_pairs(scores: Tensor, k: int) -> Tensor:
    """Return the positions (2, r, k) of the k largest sums of one score per list; `scores` is (2, r, n).

    Only the k best scores of each list can contribute. After sorting both lists, the pair of the i-th and j-th best
    (counted from 1) has i j - 1 other pairs that are at least as good, so pairs with i j > k are skipped.
    """
    values, positions = scores.topk(k, dim=-1)  # (2, r, k), sorted
    i, j = (torch.tensor(ranks, device=scores.device) for ranks in _candidate_ranks(k))  # (p,) each
    wide = torch.promote_types(scores.dtype, torch.float32)
    chosen = (values[0].to(wide)[:, i] + values[1].to(wide)[:, j]).topk(k, dim=-1).indices  # (r, k)
    return positions.gather(-1, torch.stack([i[chosen], j[chosen]]))


@cache
def _candidate_ranks(k: int) -> tuple[list[int], list[int]]:
    """Return the pairs of ranks in two sorted lists, from 0, that can be among the k largest sums."""
    pairs = [(i, j) for i in range(k) for j in range(k // (i + 1))]
    return [i for i, _ in pairs], [j for _, j in pairs]
