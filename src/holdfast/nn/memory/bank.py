"""A bank of slots, keys and values, that the state of a recurrent network reads; it grows by segments.

g directions, m slots, h hidden units, d width of a value
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.growth import expand_units


class MemoryBank(nn.Module):
    """Keys (g, m, h) and values (g, m, d) of slots, own ones for each direction; a growth is a segment of a domain."""

    owner: Tensor

    def __init__(self, slots: int, *, directions: int, hidden: int, width: int) -> None:
        super().__init__()
        self.directions, self.hidden, self.width = directions, hidden, width
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
        return [key.shape[1] for key in self.keys]

    @property
    def owners(self) -> list[int]:
        """The domain that each segment came with."""
        return [int(slots[0]) for slots in self.owner.split(self.sizes)]

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """Add a segment for a domain; the new parameters, for an optimizer to adopt.

        The scale does not depend on how many slots are added.
        """
        if slots < 1:
            raise BadInput(f"a bank grows by at least one slot, not {slots}")
        like = self.keys[0] if len(self.keys) else torch.empty(0)
        new = []
        for held, width in ((self.keys, self.hidden), (self.values, self.width)):
            drawn = torch.empty(self.directions, slots, width, device=like.device, dtype=like.dtype)
            new.append(nn.Parameter(drawn.uniform_(-(width**-0.5), width**-0.5)))
            held.append(new[-1])
        self.owner = torch.cat([self.owner, self.owner.new_full((slots,), domain)])
        return new

    def widen(self, units: int) -> None:
        """Keys for states that have so many units more."""
        self.keys = nn.ParameterList([expand_units(key, units) for key in self.keys])
        self.hidden += units

    def cut(self, segments: int) -> None:
        """Forget all but the first segments: the shape of before, for weights that were kept then."""
        slots = self.first(segments)[0].shape[1]
        self.keys, self.values = self.keys[:segments], self.values[:segments]
        self.owner = self.owner[:slots]

    def first(self, segments: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of all segments, or of the first ones alone."""
        if segments is not None and not 1 <= segments <= len(self.keys):
            raise BadInput(f"this bank has {len(self.keys)} segments, so {segments} cannot be read")
        keys, values = list(self.keys)[:segments], list(self.values)[:segments]
        return (keys[0], values[0]) if len(keys) == 1 else (torch.cat(keys, 1), torch.cat(values, 1))


def _make_room(bank: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: grow to the segments that they have."""
    assert isinstance(bank, MemoryBank)
    while f"{prefix}keys.{len(bank.keys)}" in state:
        learns = bank.keys[0].requires_grad
        for parameter in bank.grow(state[f"{prefix}keys.{len(bank.keys)}"].shape[1], domain=0):
            parameter.requires_grad_(learns)
    if f"{prefix}owner" in state:
        bank.owner = bank.owner.new_zeros(len(state[f"{prefix}owner"]))
