"""A batch that knows which domain each example came from.

b examples, n domains
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.core import inputs
from holdfast.core.inputs import Inputs
from holdfast.core.ragged import cat_targets


@dataclass(frozen=True, slots=True)
class DomainBatch:
    """Examples of one or more domains, laid out domain after domain."""

    x: Inputs  # b examples
    y: Tensor  # (b, ...) targets
    domains: tuple[int, ...]  # one id per domain
    sizes: tuple[int, ...]  # examples per domain

    def __post_init__(self) -> None:
        if not inputs.size(self.x) == len(self.y) == sum(self.sizes):
            raise ValueError(f"{inputs.size(self.x)} inputs, {len(self.y)} targets, sizes {self.sizes}")
        if len(self.domains) != len(self.sizes):
            raise ValueError(f"{len(self.domains)} domains but {len(self.sizes)} sizes")

    @staticmethod
    def cat(parts: Sequence[DomainBatch]) -> DomainBatch:
        """Several batches as one; a domain that comes twice stays two pieces."""
        return DomainBatch(
            x=inputs.cat([p.x for p in parts]),
            y=cat_targets([p.y for p in parts]),
            domains=tuple(d for p in parts for d in p.domains),
            sizes=tuple(s for p in parts for s in p.sizes),
        )

    def split(self, t: Any) -> tuple[Any, ...]:
        """Cut anything of b examples into one piece per domain."""
        return inputs.split(t, self.sizes)

    def by_domain(self) -> tuple[DomainBatch, ...]:
        """The same batch, one domain at a time."""
        rows = zip(self.split(self.x), self.split(self.y), self.domains, self.sizes, strict=True)
        return tuple(DomainBatch(x, y, (d,), (n,)) for x, y, d, n in rows)

    def microbatches(self, count: int) -> Iterator[DomainBatch]:
        """The batch in so many pieces of about the same size, each with its share of every domain."""
        cuts = [[n * (i + 1) // count - n * i // count for i in range(count)] for n in self.sizes]
        flat = [n for domain in cuts for n in domain]
        xs, ys = inputs.split(self.x, flat), inputs.split(self.y, flat)
        for i in range(count):
            rows = [(at * count + i, domain) for at, domain in enumerate(self.domains) if cuts[at][i]]
            if rows:
                yield DomainBatch.cat([DomainBatch(xs[k], ys[k], (domain,), (len(ys[k]),)) for k, domain in rows])

    def hold_out(self, i: int) -> tuple[DomainBatch, DomainBatch]:
        """(all domains but the i-th, the i-th): meta-train and meta-test."""
        parts = self.by_domain()
        return DomainBatch.cat(parts[:i] + parts[i + 1 :]), parts[i]

    def positions(self) -> Tensor:
        """(b,) position of each example's domain in this batch: the target of a discriminator."""
        index = torch.arange(len(self.sizes), device=self.y.device)
        return index.repeat_interleave(torch.tensor(self.sizes, device=self.y.device))
