"""Endless batches: the same number from each training domain, every row once before any comes again.

b examples of one domain; of several processes each takes its share of the same draw
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.data.examples import Examples
from holdfast.data.splits import Part

Transform = Callable[[Any, torch.Generator], Any]
Redraw = Callable[[Any, Tensor, torch.Generator], tuple[Any, Tensor]]
COMMON = 1024  # examples of a domain in a batch: up to so many may be more than there are, for rows may come again


class ForbiddenRow(RuntimeError):
    """Someone asked the sampler for a row outside the parts it was opened for."""


class Batches:
    """An iterator over DomainBatches of `parts` alone, whose position can be saved and put back."""

    def __init__(
        self,
        examples: Examples,
        parts: Sequence[Part],
        size: int,
        *,
        generator: torch.Generator,
        transform: Transform | None = None,
        redraw: Redraw | None = None,
        own: torch.Generator | None = None,  # for what is changed in this process's examples; the same unless given
    ) -> None:
        self.examples, self.size, self.generator, self.own = examples, size, generator, own or generator
        self.transform, self.redraw = transform, redraw
        self.rows = [examples.rows_of(p) for p in parts]
        for part, rows in zip(parts, self.rows, strict=True):
            if not len(rows):
                raise BadInput(f"domain '{part.domain}' has nothing to train on: give it more or leave it out")
        if size > max(COMMON, there := sum(map(len, self.rows))):
            raise BadInput(f"a batch of {size:,} is more than all {there:,} examples to train on: lower --batch")
        self.domains = tuple(examples.index[p.domain] for p in parts)
        self.sizes = (size,) * len(parts)
        self.allowed = torch.zeros(len(examples), dtype=torch.bool)
        for rows in self.rows:
            self.allowed[rows] = True
        self.drawn = torch.zeros(0, dtype=torch.long)  # the rows of the newest batch
        self.order = [rows[:0] for rows in self.rows]  # what is left of each domain's current pass

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> DomainBatch:
        self.drawn = torch.cat([self._draw(i) for i in range(len(self.rows))])
        return self._made(self.drawn)

    def batch(self, rows: Tensor) -> DomainBatch:
        """The batch of these rows, `size` of each domain in turn; a row outside the parts raises."""
        self._check(rows)
        return self._made(rows)

    def _made(self, rows: Tensor) -> DomainBatch:
        x, y = self.examples.both(rows)
        if self.transform is not None:
            x = self.transform(x, self.own)
        if self.redraw is not None:
            x, y = self.redraw(x, y, self.own)
        return DomainBatch(x, y, self.domains, self.sizes)

    def _check(self, rows: Tensor) -> None:
        if not bool(self.allowed[rows].all()):
            outside = rows[~self.allowed[rows]].tolist()
            raise ForbiddenRow(f"rows {outside[:5]} are outside the parts this stage may train on")

    def _draw(self, i: int) -> Tensor:
        """The next `size` rows of the i-th domain; a pass that ends inside a batch is followed by a new one."""
        left, whole, first = self.order[i], self.size * parallel.world_size(), self.size * parallel.rank()
        while len(left) < whole:
            rows = self.rows[i]
            left = torch.cat([left, rows[torch.randperm(len(rows), generator=self.generator)]])
        self.order[i] = left[whole:]
        return left[first : first + self.size]

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "order": [o.clone() for o in self.order]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for order in state["order"]:
            self._check(order)  # a position saved for other parts must not open them here
        self.generator.set_state(state["generator"])
        self.order = list(state["order"])
