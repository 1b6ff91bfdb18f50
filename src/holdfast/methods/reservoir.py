"""A reservoir: a bounded, uniform sample of all examples it was ever given, of any kind of input, kept on the CPU.

b batch, k examples drawn
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from holdfast.core import inputs, parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.chance import shared_chance
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, Inputs, Tokens
from holdfast.core.ragged import cat_targets, unpadded

_KINDS: dict[str, type[Tokens] | type[Graphs]] = {"tokens": Tokens, "graphs": Graphs}


class Reservoir:
    """Each example seen so far is held with the same probability, capacity / seen (Vitter, 1985, algorithm R)."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise BadInput(f"capacity must be at least 1 example, not {capacity}")
        self.capacity, self.seen = capacity, 0
        self.x: list[Inputs] = []  # one example each, texts without padding
        self.y: list[Tensor] = []  # (1, ...) each
        self.domain: list[int] = []

    def __len__(self) -> int:
        return len(self.y)

    def fill(self, batches: Iterable[DomainBatch]) -> None:
        """Offer every example of these batches once; who stays depends on their order, not on how they are cut."""
        for batch in batches:
            for part in batch.parts():
                self._offer(part)

    def draw(self, k: int, device: torch.device | str) -> DomainBatch:
        """Up to k distinct examples, domain after domain; other processes draw others, as long as there are some."""
        assert len(self), "nothing is held yet"
        processes = parallel.world_size()
        with shared_chance():
            chosen = torch.randperm(len(self))[: k * processes].tolist()
        chosen = chosen[parallel.rank() :: processes] or chosen
        return self._batch(sorted(chosen, key=lambda i: self.domain[i]), device)

    def singles(self, device: torch.device | str) -> Iterable[DomainBatch]:
        """All that is held, one example a batch."""
        return (self._batch([i], device) for i in range(len(self)))

    def _offer(self, part: DomainBatch) -> None:
        (domain,), size = part.domains, len(part.y)
        # the n-th example of all goes to a place among n; places from the capacity on are outside
        ends = torch.arange(self.seen + 1, self.seen + size + 1)
        places = (torch.rand(size, dtype=torch.float64) * ends).long()
        filling = max(0, min(size, self.capacity - self.seen))
        places[:filling] = ends[:filling] - 1
        self.seen += size
        kept = {place: row for row, place in enumerate(places.tolist()) if place < self.capacity}
        if not kept:
            return
        x = inputs.to(inputs.take(part.x, list(kept.values())), "cpu")
        y = part.y[list(kept.values())].cpu()  # waits for the device, so that x has arrived too
        for i, place in enumerate(kept):
            new = (_trimmed(inputs.take(x, [i])), unpadded(y[[i]]), domain)
            if place < len(self):
                self.x[place], self.y[place], self.domain[place] = new
            else:
                self.x.append(new[0])
                self.y.append(new[1])
                self.domain.append(new[2])

    def _batch(self, places: list[int], device: torch.device | str) -> DomainBatch:
        owners = [self.domain[i] for i in places]
        domains = tuple(dict.fromkeys(owners))
        return DomainBatch(
            x=inputs.to(inputs.cat([self.x[i] for i in places]), device),
            y=cat_targets([self.y[i] for i in places]).to(device),
            domains=domains,
            sizes=tuple(owners.count(d) for d in domains),
        )

    def state_dict(self) -> dict[str, Any]:
        held = {"x": _packed(inputs.cat(self.x)), "y": cat_targets(self.y)} if len(self) else {}
        return {"seen": self.seen, "domain": list(self.domain), **held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.domain = state["seen"], list(state["domain"])
        self.x, self.y = [], []
        if self.domain:
            x = _unpacked(state["x"])
            self.x = [_trimmed(inputs.take(x, [i])) for i in range(len(self.domain))]
            self.y = [unpadded(state["y"][[i]]) for i in range(len(self.domain))]


def _trimmed(x: Inputs) -> Inputs:
    """One example without the padding that its batch gave it."""
    if not isinstance(x, Tokens):
        return x
    length = int(x.mask[0].nonzero().max()) + 1 if bool(x.mask.any()) else 1
    types = None if x.types is None else x.types[:, :length].clone()
    at = None if x.at is None else unpadded(x.at)
    return Tokens(x.ids[:, :length].clone(), x.mask[:, :length].clone(), types, at)


def _packed(x: Inputs) -> Any:
    if isinstance(x, Tensor):
        return x
    return {"kind": type(x).__name__.lower(), **{f.name: getattr(x, f.name) for f in fields(x)}}


def _unpacked(packed: Any) -> Inputs:
    if isinstance(packed, Tensor):
        return packed
    return _KINDS[packed["kind"]](**{name: value for name, value in packed.items() if name != "kind"})
