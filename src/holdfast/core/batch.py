"""Training batch of b examples, grouped by domain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from holdfast.core import inputs
from holdfast.core.inputs import Inputs
from holdfast.core.ragged import cat_padded


@dataclass(frozen=True, slots=True)
class DomainBatch:
    """Examples of one or more domains, one domain after another."""

    x: Inputs  # b examples
    y: Tensor  # (b, ...) targets
    domains: tuple[int, ...]  # one id per domain
    sizes: tuple[int, ...]  # examples per domain
    # (n,) position of each domain among those of the stage, if a step has some of them; read as data by captured steps
    drawn: Tensor | None = None

    def __post_init__(self) -> None:
        if not inputs.size(self.x) == len(self.y) == sum(self.sizes):
            raise ValueError(f"{inputs.size(self.x)} inputs, {len(self.y)} targets, sizes {self.sizes}")
        if len(self.domains) != len(self.sizes):
            raise ValueError(f"{len(self.domains)} domains but {len(self.sizes)} sizes")

    @staticmethod
    def cat(batches: Sequence[DomainBatch]) -> DomainBatch:
        """Concatenate batches; a domain that occurs in two of them stays two groups."""
        return DomainBatch(
            x=inputs.cat([b.x for b in batches]),
            y=cat_padded([b.y for b in batches]),
            domains=tuple(d for b in batches for d in b.domains),
            sizes=tuple(s for b in batches for s in b.sizes),
            drawn=_cat([b.drawn for b in batches]),
        )

    def split(self, t: Any) -> tuple[Any, ...]:
        """Split anything of length b into one piece per domain."""
        return inputs.split(t, self.sizes)

    def by_domain(self) -> tuple[DomainBatch, ...]:
        """Return one batch per domain."""
        groups = zip(self.split(self.x), self.split(self.y), strict=True)
        return tuple(self._piece(at, x, y) for at, (x, y) in enumerate(groups))

    def microbatches(self, count: int) -> Iterator[DomainBatch]:
        """Yield `count` smaller batches of about equal size, with every domain represented in proportion."""
        cuts = [[n * (i + 1) // count - n * i // count for i in range(count)] for n in self.sizes]
        flat = [n for domain in cuts for n in domain]
        xs, ys = inputs.split(self.x, flat), inputs.split(self.y, flat)
        for i in range(count):
            places = [at for at in range(len(self.domains)) if cuts[at][i]]
            if places:
                yield DomainBatch.cat([self._piece(at, xs[at * count + i], ys[at * count + i]) for at in places])

    def _piece(self, at: int, x: Inputs, y: Tensor) -> DomainBatch:
        """Return some examples of one domain as a batch."""
        drawn = None if self.drawn is None else self.drawn[at : at + 1]
        return DomainBatch(x, y, (self.domains[at],), (len(y),), drawn)

    def hold_out(self, i: int) -> tuple[DomainBatch, DomainBatch]:
        """Return (all domains except the i-th, the i-th domain): meta-train and meta-test."""
        groups = self.by_domain()
        return DomainBatch.cat(groups[:i] + groups[i + 1 :]), groups[i]

    def labelled_count(self, groups: int) -> int:
        """Return the number of labelled examples, which come first; the last `groups` groups have no labels."""
        return sum(self.sizes[: len(self.sizes) - groups])

    def with_control(self, groups: int, choice: str) -> DomainBatch:
        """Return the batch, for the null control with random labelled inputs in place of the unlabelled ones."""
        if not groups or choice != "source":
            return self
        count, total = self.labelled_count(groups), len(self.y)
        rows = torch.cat([torch.arange(count), torch.randint(count, (total - count,))])
        return replace(self, x=inputs.take(self.x, rows.to(self.y.device)))

    def places(self) -> Tensor:
        """Return (n,) the position of each domain among the domains of the stage: the index of its state."""
        return torch.arange(len(self.sizes), device=self.y.device) if self.drawn is None else self.drawn

    def positions(self) -> Tensor:
        """Return (b,) the position of each example's domain among those of the stage: the target of a domain critic."""
        places = zip(self.places().split(1), self.sizes, strict=True)  # the CPU does not wait for the device here
        return torch.cat([place.expand(n) for place, n in places])


def _cat(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate tensors; None if one of them is missing."""
    known = [t for t in tensors if t is not None]
    return torch.cat(known) if len(known) == len(tensors) else None
