"""Memory bank: slots that grow in segments, one segment per domain.

Shapes: g directions, m slots, h hidden units, d value width.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.growth import expand_units
from holdfast.nn.memory.initialise import choose_slots, solve_scale, thin
from holdfast.nn.memory.read import mean_values

MAX_SHIFT = 30.0  # of the scores of new slots
VALUES = 0.03  # scale of initial values, relative to the inputs: larger ones outweigh the inputs of a short training


class SegmentedSlots(nn.Module):
    """Base class of memories whose keys (..., m, q) and values (..., m, d) grow by segments, one per domain.

    A state_dict with more segments loads into a smaller memory.
    """

    mechanism = rate_part = "memory"
    null_name = "all values replaced by their mean over slots"

    keys: nn.ParameterList  # one entry per segment
    values: nn.ParameterList
    owner: Tensor  # (m,) the domain of each slot
    pending: int = 0  # newest segments that were not yet initialised from data

    def _initialise_slots(self, slots: int) -> None:
        """Register the first segment. Called last in `__init__`: the order of the parameters is part of a run."""
        self.keys, self.values = nn.ParameterList(), nn.ParameterList()
        self.register_buffer("owner", torch.zeros(0, dtype=torch.long))
        self.grow(slots, domain=0)
        self.register_load_state_dict_pre_hook(_add_missing_segments)

    def _sample_segment(self, slots: int) -> tuple[Tensor, Tensor]:
        """Return initial keys and values of `slots` new slots."""
        raise NotImplementedError

    @property
    def slots(self) -> int:
        return len(self.owner)

    @property
    def sizes(self) -> list[int]:
        """Number of slots per segment."""
        return [key.shape[-2] for key in self.keys]

    @property
    def owners(self) -> list[int]:
        """Domain per segment."""
        return [int(slots[0]) for slots in self.owner.split(self.sizes)]

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """Add a segment of `slots` slots for a domain and return the new parameters, for the optimizer."""
        if slots < 1:
            raise BadInput(f"a memory must grow by at least one slot, got {slots}")
        new = [nn.Parameter(tensor) for tensor in self._sample_segment(slots)]
        self.keys.append(new[0])
        self.values.append(new[1])
        self.pending += 1
        self.owner = torch.cat([self.owner, self.owner.new_full((slots,), domain)])
        return new

    def null(self) -> AbstractContextManager[None]:
        """Context in which all values are replaced by their mean."""
        return mean_values(self.values)

    def segments(self, count: int | None = None) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first `count` segments (default: all), concatenated over slots."""
        if count is not None and not 1 <= count <= len(self.keys):
            raise BadInput(f"`segments` must lie between 1 and {len(self.keys)} for this memory, got {count}")
        keys, values = list(self.keys)[:count], list(self.values)[:count]
        return (keys[0], values[0]) if len(keys) == 1 else (torch.cat(keys, -2), torch.cat(values, -2))


class MemoryBank(SegmentedSlots):
    r"""Bank of slots that the hidden state of a recurrent network reads at every step (Asghar et al., 2020).

    .. math:: \sum_j \mathrm{softmax}_j(\langle h, k_j \rangle) v_j

    Args:
        slots: Slots of the first segment.
        directions: Number of directions g; each one has its own slots.
        hidden: Width h of the hidden state and of the keys.
        width: Width d of the values.
        key_scale: Factor of initial keys.
        value_scale: Factor of initial values.
        temperature: Divisor of the scores.

    Shape:
        `read`: (g, b, h) to content (g, b, d) and weights (g, b, m).

    Example:
        >>> bank = MemoryBank(6, directions=2, hidden=8, width=4)
        >>> new_parameters = bank.grow(3, domain=1)
        >>> [tensor.shape for tensor in bank.read(torch.randn(2, 5, 8))]
        [torch.Size([2, 5, 4]), torch.Size([2, 5, 9])]
    """

    directions: int
    hidden: int
    key_scale: float
    keys: nn.ParameterList
    temperature: float
    value_scale: float
    width: int

    def __init__(
        self, slots: int, *, directions: int, hidden: int, width: int,
        key_scale: float = 1.0, value_scale: float = 1.0, temperature: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.directions, self.hidden, self.width = directions, hidden, width
        self.key_scale, self.value_scale, self.temperature = key_scale, value_scale, temperature
        self._initialise_slots(slots)

    def _sample_segment(self, slots: int) -> tuple[Tensor, Tensor]:
        """Sample uniformly within scale/sqrt(width), which does not depend on the number of slots."""
        like = self.keys[0] if len(self.keys) else torch.empty(0)
        sizes = ((self.directions, slots, width) for width in (self.hidden, self.width))
        keys, values = (like.new_empty(size).uniform_(-(size[-1] ** -0.5), size[-1] ** -0.5) for size in sizes)
        return keys * self.key_scale, values * self.value_scale

    def segments(self, count: int | None = None) -> tuple[Tensor, Tensor]:
        """Return keys, divided by the temperature, and values of the first `count` segments (default: all)."""
        keys, values = super().segments(count)
        return keys if self.temperature == 1 else keys / self.temperature, values

    @torch.no_grad()
    def initialise(self, states: Tensor, inputs: Tensor, *, generator: torch.Generator) -> None:
        """Initialise the new segments from states (n, g, h) and from the inputs (n, e) that contents are added to.

        Keys are standardised states without the direction of their mean, scaled so that a read of the segment uses 16
        effective slots; keys of a later segment are shifted so that it gets its share of the slots in the mean read.
        Values have 0.03 times the mean and standard deviation of the inputs, later ones those of earlier values.
        """
        mean, deviation = states.mean(0)[:, None], states.std(0, correction=0)[:, None]  # (g, 1, h)
        deviation = deviation.clamp(min=1e-2 * float(deviation.max()) + 1e-12)
        direction = torch.nn.functional.normalize(mean, dim=-1)
        queries = thin(states, 512).transpose(0, 1)  # (g, n, h)
        for i in range(len(self.keys) - self.pending, len(self.keys)):
            keys, values = self.keys[i], self.values[i]
            to_slots = choose_slots(states.flatten(1), keys.shape[1], generator=generator)
            sampled = (to_slots(states).transpose(0, 1) - mean) / deviation**2  # (g, m, h)
            sampled -= direction * (direction * sampled).sum(-1, keepdim=True)  # a mean state prefers no slot
            for direction_keys, chosen, query in zip(keys, sampled, queries, strict=True):
                direction_keys.copy_(chosen * (self.key_scale * solve_scale(query @ chosen.T)))
            noise = torch.randn(values.shape, generator=generator).to(values)
            if i:
                earlier = torch.cat(list(self.values)[:i], -2)
                keys += _shift_to_share(queries, torch.cat(list(self.keys)[:i], -2), keys)[:, None]
                values.copy_(earlier.mean() + earlier.std() * noise)
            else:
                values.copy_((inputs.mean() + inputs.std() * noise) * (VALUES * self.value_scale))
        self.pending = 0

    def read(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return the content (g, b, d) and the weights (g, b, m) for hidden states (g, b, h)."""
        keys, values = self.segments()
        weights = (query @ keys.mT).softmax(-1)
        return weights @ values, weights

    def widen(self, units: int) -> None:
        """Extend all keys for hidden states with `units` more units."""
        self.keys = nn.ParameterList([expand_units(key, units) for key in self.keys])
        self.hidden += units


def _shift_to_share(queries: Tensor, earlier: Tensor, new: Tensor) -> Tensor:
    """Return vectors (g, h) that, added to new keys, give them the mean attention of a uniform read over all keys.

    They are multiples of the ridge regression of a constant on the queries (g, n, h), so that the scores of all new
    keys change by about the same amount in each read.
    """
    products = queries.mT @ queries  # (g, h, h)
    ridge = 1e-2 * products.diagonal(dim1=-2, dim2=-1).mean(-1) + 1e-12
    products = products + ridge[:, None, None] * torch.eye(products.shape[-1]).to(products)
    constant = torch.linalg.solve(products, queries.sum(1))  # (g, h)
    steps = (queries @ constant[..., None]).squeeze(-1)  # (g, n), about 1
    ahead = (queries @ new.mT).logsumexp(-1) - (queries @ earlier.mT).logsumexp(-1)
    share = new.shape[1] / (new.shape[1] + earlier.shape[1])
    low, high = (ahead.new_full((len(queries), 1), bound) for bound in (-MAX_SHIFT, MAX_SHIFT))
    for _ in range(30):
        middle = (low + high) / 2
        too_low = (ahead + middle * steps).sigmoid().mean(-1, keepdim=True) < share
        low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
    return high * constant


def _add_missing_segments(memory: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded, grow to the number of segments they contain."""
    while f"{prefix}keys.{len(memory.keys)}" in state:
        trainable = memory.keys[0].requires_grad
        for parameter in memory.grow(state[f"{prefix}keys.{len(memory.keys)}"].shape[-2], domain=0):
            parameter.requires_grad_(trainable)
    if f"{prefix}owner" in state:
        memory.owner = memory.owner.new_zeros(len(state[f"{prefix}owner"]))
    memory.pending = 0
    if "sharpness" in memory._buffers:  # missing in weights of earlier versions
        state.setdefault(f"{prefix}sharpness", torch.ones(()))
