"""Product-key memory: keys are pairs of half keys, so the best of n x n slots are found among 2 n scores.

Shapes: b batch, h heads, n half keys per side, m = n n slots, k chosen slots, q key width, d width.
"""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from holdfast.accel.table_reads import select_pairs, weighted_rows
from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, keywords_of, retired_settings, setting
from holdfast.nn.memory.initialise import (
    choose_slots,
    examples_for,
    needs_no_initialisation,
    normalise_queries,
    relative_scale,
    solve_scale,
)
from holdfast.nn.memory.key_value import SlotSettings, query_net
from holdfast.nn.memory.read import Read, mean_values
from holdfast.ops.reads import best_pairs


@checked_settings
class ProductKeySettings(SlotSettings):
    """Settings of a product-key memory."""

    slots: int = setting(1_048_576, least=1)
    top: int = 32  # slots per head

    retired: ClassVar[Mapping[str, Any]] = retired_settings(query="linear", updates="all")

    def __post_init__(self) -> None:
        side = self.side
        if side * side != self.slots:
            nearest = round(math.sqrt(self.slots)) ** 2
            raise BadInput(
                f"`slots` must be a perfect square for product keys; got {self.slots}, the nearest is {nearest}"
            )
        if self.key_width % 2:
            raise BadInput(f"`key_width` must be even, since a key has two halves; got {self.key_width}")
        if not 1 <= self.top <= side:
            raise BadInput(f"`top` must lie between 1 and {side}, the square root of `slots`; got {self.top}")

    @property
    def side(self) -> int:
        """Number of half keys per side, n."""
        return math.isqrt(self.slots)


class ProductKeyMemory(nn.Module):
    r"""Memory with very many slots and product keys (Lample et al., 2019).

    .. math:: \sum_h \sum_{m \in \mathrm{top}\,k} \mathrm{softmax}(\langle q'_h, k'_{hi} \rangle
        + \langle q''_h, k''_{hj} \rangle) v_m, \quad m = (i, j)

    Args:
        width: Width d of the features and of the values.
        **settings: Fields of `ProductKeySettings`: `slots` (a perfect square), `heads`, `key_width`, `top`, ...

    Shape:
        `read`: features (b, d) to content (b, d), weights (b, h, k) and the chosen slots (b, h, k).

    Example:
        >>> memory = ProductKeyMemory(64, slots=1024, key_width=16, top=8)
        >>> features = torch.randn(5, 64)
        >>> memory.read(features).content.shape
        torch.Size([5, 64])
    """

    Settings = ProductKeySettings
    mechanism = rate_part = "memory"
    null_name = "all values replaced by their mean over slots"
    half_width: int
    heads: int
    keys: nn.Parameter
    options: ProductKeySettings
    pending: bool
    query: nn.Module
    side: int
    slots: int
    top: int
    values: nn.Parameter
    width: int

    @keywords_of(ProductKeySettings)
    def __init__(self, width: int, settings: ProductKeySettings) -> None:
        super().__init__()
        self.options = options = settings
        self.width, self.slots, self.side = width, options.slots, options.side
        self.heads, self.top, self.half_width = options.heads, options.top, options.key_width // 2
        self.query = query_net(width, self.heads * options.key_width, norm=options.query_norm)
        bound = self.half_width**-0.5
        self.keys = nn.Parameter(torch.empty(2, self.heads, self.side, self.half_width).uniform_(-bound, bound))
        self.values = nn.Parameter(torch.empty(self.slots, width).normal_(std=width**-0.5))
        self.pending = options.init == "data"  # whether it was not yet initialised from data
        self.register_load_state_dict_pre_hook(needs_no_initialisation)

    @property
    def examples_needed(self) -> int:
        """Number of training examples that initialise the keys; 0 once they are initialised."""
        return examples_for(2 * self.side, self.options.keys) if self.pending else 0

    @torch.no_grad()
    def initialise(self, features: Tensor, *, generator: torch.Generator) -> None:
        """Initialise from features (n, d), as `KeyValueMemory.initialise` does.

        Half keys belong to features a_i and b_j; the value of slot (i, j) is the sum of both deviations, scaled.
        """
        normalise_queries(self.query, features)
        queries = self._queries(features).unflatten(0, (2, self.heads))  # (2, h, n, q / 2)
        rows, sides = queries.permute(2, 0, 1, 3), []
        for keys, side in zip(self.keys, rows.unbind(1), strict=True):  # (h, n, q / 2), (n, h, q / 2)
            to_keys = choose_slots(side.flatten(1), self.side, keys=self.options.keys, generator=generator)
            keys.copy_(to_keys(side).transpose(0, 1))
            sides.append(to_keys(features - features.mean(0)))
        scores = torch.matmul(queries[:, :, :512], self.keys.mT).flatten(1, 2)  # (2, h n, side)
        self.keys.mul_(solve_scale(scores.gather(-1, best_pairs(scores, self.top)).sum(0)))
        mean = features.mean(0)
        self.values.copy_((sides[0][:, None] + sides[1][None]).flatten(0, 1))
        self.values.mul_(relative_scale(features - mean, self.read(features).content)).add_(mean / self.heads)
        self.pending = False

    def _queries(self, features: Tensor) -> Tensor:
        """Return the half queries (2 h, b, q / 2)."""
        return self.query(features).view(len(features), 2 * self.heads, self.half_width).transpose(0, 1)

    def null(self) -> AbstractContextManager[None]:
        """Context in which all values are replaced by their mean."""
        return mean_values([self.values])

    def read(self, query: Tensor) -> Read:
        """Read the best `top` slots per head with features (b, d)."""
        b = query.shape[0]
        scores = torch.bmm(self._queries(query), self.keys.flatten(0, 1).transpose(1, 2))  # (2 h, b, n)
        scores = scores.view(2, self.heads * b, self.side)
        weights, slots = select_pairs(scores, self.top, heads=self.heads)  # (b, h, k) both
        content = weighted_rows(self.values, slots.reshape(b, -1), weights.reshape(b, -1))
        return Read(content, weights, slots)
