"""A memory of very many slots: keys are pairs of half keys, so that the best of n x n slots lie among 2 n scores.

b batch, h heads, n half keys of a side, m = n n slots, k slots chosen, q width of a key, d width
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.kernels import kernels
from holdfast.nn.memory.key_value import query_net
from holdfast.nn.memory.read import Read, weighted_rows


class ProductKeyMemory(nn.Module):
    """sum_h sum_{m in best k} softmax(<q_h', k_hi'> + <q_h'', k_hj''>) v_m with m = (i, j) (Lample et al., 2019).

    With `sparse` the gradient of the values names only the rows that were read: it is for torch.optim.SparseAdam or
    SGD without momentum, in an optimizer of their own. The fused optimizers of a run take dense gradients alone.
    """

    def __init__(
        self,
        width: int,
        *,
        slots: int = 1_048_576,
        heads: int = 4,
        key_width: int = 256,
        top: int = 32,
        query: str = "linear",
        query_norm: bool = False,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        side = math.isqrt(max(slots, 0))
        if side < 1 or side * side != slots:
            nearest = max(1, round(math.sqrt(max(slots, 0)))) ** 2
            raise BadInput(f"slots of a product-key memory are a square number: {slots} is none, {nearest} is near")
        if heads < 1 or key_width < 2 or key_width % 2:
            raise BadInput("heads must be at least 1, and key_width an even number: a key has two halves")
        if not 1 <= top <= side:
            raise BadInput(
                f"top must lie between 1 and {side}, the root of the slots, not {top}: ask for fewer or take more slots"
            )
        self.width, self.slots, self.side, self.heads, self.top = width, slots, side, heads, top
        self.half_width, self.sparse = key_width // 2, sparse
        self.query = query_net(width, heads * key_width, kind=query, norm=query_norm)
        bound = self.half_width**-0.5
        self.keys = nn.Parameter(torch.empty(2, heads, side, self.half_width).uniform_(-bound, bound))
        self.values = nn.Parameter(torch.empty(slots, width).normal_(std=width**-0.5))

    def read(self, query: Tensor) -> Read:
        """The content for features (b, d): of each head its best `top` slots."""
        b = query.shape[0]
        asked = self.query(query).view(b, 2 * self.heads, self.half_width).transpose(0, 1)  # (2 h, b, q / 2)
        scores = torch.bmm(asked, self.keys.flatten(0, 1).transpose(1, 2))  # (2 h, b, n)
        scores = scores.view(2, self.heads * b, self.side)
        with torch.no_grad():
            places = best_pairs(scores, self.top)  # (2, h b, k)
        # the chosen scores are gathered once more, so that the choice itself needs no gradient
        logits = scores.gather(-1, places).sum(dim=0, dtype=torch.promote_types(scores.dtype, torch.float32))
        weights = logits.softmax(dim=-1).view(self.heads, b, self.top).transpose(0, 1)  # (b, h, k)
        slots = (places[0] * self.side + places[1]).view(self.heads, b, self.top).transpose(0, 1)
        content = weighted_rows(self.values, slots.reshape(b, -1), weights.reshape(b, -1), sparse=self.sparse)
        return Read(content, weights, slots)


def best_pairs(scores: Tensor, k: int) -> Tensor:
    """(2, r, k) which place of either list the k best of all sums of two scores have; scores are (2, r, n).

    Only the k best of each list can matter: a pair with another first score has k better ones, the k best first scores
    with the same second one. And once both lists are sorted, the pair of the i-th and the j-th best, counted from 1,
    has i j pairs that are no worse, itself among them, so that pairs with i j > k can be left out.
    """
    fast = kernels("memory", scores)
    if fast is not None and max(scores.shape[-1], k * k) <= fast.MAX_CANDIDATES:
        return fast.top_sums(*fast.top_scores(scores, k), k)
    values, places = scores.topk(k, dim=-1)  # (2, r, k), sorted
    i, j = (torch.tensor(each, device=scores.device) for each in _worth_a_look(k))  # (p,) both
    wide = torch.promote_types(scores.dtype, torch.float32)
    chosen = (values[0].to(wide)[:, i] + values[1].to(wide)[:, j]).topk(k, dim=-1).indices  # (r, k)
    return places.gather(-1, torch.stack([i[chosen], j[chosen]]))


@cache
def _worth_a_look(k: int) -> tuple[list[int], list[int]]:
    """The pairs of places in two sorted lists, counted from 0, that can be among the k best sums."""
    pairs = [(i, j) for i in range(k) for j in range(k // (i + 1))]
    return [i for i, _ in pairs], [j for _, j in pairs]
