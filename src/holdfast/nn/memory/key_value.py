"""A key-value memory: slots that are learned, read by several heads at once, and that can grow.

b batch, h heads, m slots, q width of a key, d width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.nn.memory.read import SIMILARITIES, Read, read

QUERIES = ("linear", "mlp")


class KeyValueMemory(nn.Module):
    """sum_h sum_m softmax_m(<q_h(z), k_hm>) v_m (Lample et al., 2019, without the product of keys).

    Each growth adds a segment of slots that remembers its domain; reading the first segments alone gives
    what the memory gave before the later ones were there.
    """

    owner: Tensor

    def __init__(
        self,
        width: int,
        *,
        slots: int = 1024,
        heads: int = 4,
        key_width: int = 256,
        query: str = "linear",
        query_norm: bool = False,
        keys_per_head: bool = True,
        values_per_head: bool = False,
        project: bool = False,
        mean: bool = False,
        similarity: str = "dot",
        temperature: float = 1.0,
        top: int | None = None,
    ) -> None:
        super().__init__()
        if min(slots, heads, key_width, 1 if top is None else top) < 1 or not temperature > 0:
            raise BadInput("slots, heads, key_width and top must be at least 1, temperature above 0")
        if similarity not in SIMILARITIES:
            raise unknown("similarity", similarity, SIMILARITIES)
        self.width, self.heads, self.key_width = width, heads, key_width
        self.keys_per_head, self.values_per_head = keys_per_head, values_per_head
        self.mean, self.similarity, self.temperature, self.top = mean, similarity, temperature, top
        self.query = query_net(width, heads * key_width, kind=query, norm=query_norm)
        self.project = nn.Linear(width, width) if project else nn.Identity()
        self.keys, self.values = nn.ParameterList(), nn.ParameterList()  # one entry a segment
        self.register_buffer("owner", torch.zeros(0, dtype=torch.long))  # (m,) the domain each slot came with
        self.grow(slots, domain=0)
        self.register_load_state_dict_pre_hook(_make_room)

    @property
    def slots(self) -> int:
        return len(self.owner)

    @property
    def sizes(self) -> list[int]:
        """The slots of each segment."""
        return [key.shape[-2] for key in self.keys]

    @property
    def owners(self) -> list[int]:
        """The domain that each segment came with."""
        return [int(slots[0]) for slots in self.owner.split(self.sizes)]

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """Add a segment of slots for a domain; the new parameters, for an optimizer to adopt."""
        if slots < 1:
            raise BadInput(f"a memory grows by at least one slot, not {slots}")
        like = {"device": self.owner.device, "dtype": next(self.query.parameters()).dtype}
        shape = (self.heads, slots) if self.keys_per_head else (slots,)
        bound = self.key_width**-0.5
        key = nn.Parameter(torch.empty(*shape, self.key_width, **like).uniform_(-bound, bound))
        shape = (self.heads, slots) if self.values_per_head else (slots,)
        value = nn.Parameter(torch.empty(*shape, self.width, **like).normal_(std=self.width**-0.5))
        self.keys.append(key)
        self.values.append(value)
        self.owner = torch.cat([self.owner, self.owner.new_full((slots,), domain)])
        return [key, value]

    def read(self, query: Tensor, *, segments: int | None = None) -> Read:
        """The content for features (b, d), from all segments or the first ones alone."""
        asked = self.query(query).unflatten(-1, (self.heads, self.key_width))  # (b, h, q)
        found = read(
            asked,
            _joined(list(self.keys)[:segments]),
            _joined(list(self.values)[:segments]),
            similarity=self.similarity,
            temperature=self.temperature,
            top=self.top,
            mean=self.mean,
        )
        return found._replace(content=self.project(found.content))


def query_net(width: int, outputs: int, *, kind: str, norm: bool) -> nn.Module:
    """What turns features (b, d) into the queries of all heads (b, h * q)."""
    if kind not in QUERIES:
        raise unknown("query net", kind, QUERIES)
    layers: list[nn.Module] = [nn.Linear(width, width), nn.ReLU()] if kind == "mlp" else []
    layers.append(nn.Linear(width, outputs))
    if norm:
        layers.append(nn.BatchNorm1d(outputs))
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def _joined(segments: list[Any]) -> Tensor:
    return segments[0] if len(segments) == 1 else torch.cat(segments, dim=-2)


def _make_room(memory: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: grow to the segments that they have."""
    assert isinstance(memory, KeyValueMemory)
    while f"{prefix}keys.{len(memory.keys)}" in state:
        more = state[f"{prefix}keys.{len(memory.keys)}"].shape[-2]
        learns = memory.keys[0].requires_grad
        for parameter in memory.grow(more, domain=0):
            parameter.requires_grad_(learns)
    if f"{prefix}owner" in state:
        memory.owner = memory.owner.new_zeros(len(state[f"{prefix}owner"]))
