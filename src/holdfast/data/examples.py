"""Prepared examples on their device: rows in, inputs or a DomainBatch out.

n rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.inputs import Inputs
from holdfast.core.seeds import generator
from holdfast.core.store import Store, TensorStore, join
from holdfast.data.raw import Raw
from holdfast.data.splits import Part

# tokens (or nodes) in one batch of texts (or graphs) when nothing is trained: a GPU should have more to do than to wait
BUDGET = {"cpu": 16384, "cuda": 65536}
ROWS = 1024  # rows in such a batch of features
IMAGES = 256  # rows in such a batch of images


class Examples:
    """A store of inputs with the targets and the domains' names."""

    def __init__(self, store: Store, y: Tensor, domains: Sequence[str], *, device: torch.device | str = "cpu") -> None:
        assert len(store) == len(y)
        self.store, self.y, self.device = store.to(device), y.to(device), torch.device(device)
        self.index = {name: i for i, name in enumerate(domains)}

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, rows: Tensor) -> Inputs:
        return inputs.to(self.store.take(rows), self.device)

    def targets(self, rows: Tensor) -> Tensor:
        return self.y.index_select(0, rows.to(self.device))

    def both(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Inputs and targets; rows of a tensor travel to the device once for both."""
        if isinstance(self.store, TensorStore):
            rows = rows.to(self.device)
        return self.inputs(rows), self.targets(rows)

    def once(self, parts: Sequence[Part], size: int) -> Iterator[DomainBatch]:
        """One pass over the parts in order, each batch from one domain."""
        for part in parts:
            for rows in torch.from_numpy(part.rows).split(size):
                yield DomainBatch(*self.both(rows), (self.index[part.domain],), (len(rows),))

    @torch.no_grad()
    def map(
        self,
        function: Callable[[Inputs], Tensor],
        rows: np.ndarray,
        tick: Callable[[int], None] | None = None,
        *,
        together: tuple[int, int] | None = None,
    ) -> Tensor:
        """A function of inputs over many rows in large even batches; (n, ...) on the CPU, in the rows' order.

        Where rows change each other's value, `together` says how many make a batch and the seed to shuffle them by.
        """
        wanted = torch.from_numpy(np.ascontiguousarray(rows))
        even = together is None
        found, order = [], []
        for at in even_chunks(self.store, wanted, self.device) if even else shuffled_chunks(len(wanted), *together):
            found.append(function(self.inputs(wanted[at])).float())
            order.append(at)
            if tick is not None:
                tick(len(at))
        return torch.cat([f.cpu() for f in found])[torch.cat(order).argsort()]


def even_chunks(store: Store, rows: Tensor, device: torch.device) -> Iterator[Tensor]:
    """Positions in `rows`, in chunks of like length and bounded cost, so that little is spent on padding."""
    budget = BUDGET.get(device.type, BUDGET["cpu"])
    lengths = store.lengths()
    if lengths is None:
        first = store.take(rows[:1])
        image = isinstance(first, Tensor) and first.ndim > 2
        yield from torch.arange(len(rows)).split(IMAGES if image else ROWS)
        return
    order = lengths[rows].argsort(stable=True)
    longest = lengths[rows][order].tolist()
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or (end + 1 - start) * longest[end] > budget:
            yield order[start:end]
            start = end


def shuffled_chunks(count: int, size: int, seed: int) -> Iterator[Tensor]:
    """Positions in an order drawn by seed, in chunks of about `size`, none of them much smaller than the others."""
    order = torch.randperm(count, generator=generator(seed, "together"))
    yield from order.tensor_split(max(1, round(count / size)))


def prepare(
    raw: Raw,
    make: Callable[..., Store],
    *,
    size: int | None = None,
    tick: Callable[[int], None] | None = None,
) -> Store:
    """Run a backbone's `prepare` over all raw examples, a chunk at a time."""
    chunk = 256 if raw.kind == "image" else 4096
    parts = []
    for start in range(0, len(raw), chunk):
        rows = np.arange(start, min(start + chunk, len(raw)))
        parts.append(make(raw.take(rows, size=size)))
        if tick is not None:
            tick(len(rows))
    return join(parts)
