"""Endless batches: the same number from each training domain, every row once before any comes again.

b examples of one domain; of several processes each takes its share of the same draw
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.core import inputs, parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.core.ragged import Ragged
from holdfast.core.seeds import generator
from holdfast.core.store import Store, TensorStore, join
from holdfast.data.cache import decoded
from holdfast.data.raw import Raw
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
        x, y = self.examples.inputs_and_targets(rows)
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


# tokens (or nodes) in one batch of texts (or graphs) when nothing is trained: a GPU should have more to do than to wait
BUDGET = {"cpu": 16384, "cuda": 65536}
ROWS = 1024  # rows in such a batch of features
IMAGES = 256  # rows in such a batch of images


class Examples:
    """A store of inputs with the targets and the domains' names.

    Targets are one number an example, or rows of numbers. Where a raw example makes several inputs, such as windows of
    a long text, `starts` says which: those of the i-th lie from starts[i] to starts[i + 1].
    """

    def __init__(
        self,
        store: Store,
        y: Tensor | Ragged,
        domains: Sequence[str],
        *,
        device: torch.device | str = "cpu",
        starts: Tensor | None = None,
    ) -> None:
        assert len(store) == len(y)
        self.store, self.device, self.starts = store.to(device), torch.device(device), starts
        self.y = y if isinstance(y, Ragged) else y.to(device)
        self.index = {name: i for i, name in enumerate(domains)}

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, rows: Tensor) -> Inputs:
        return inputs.to(self.store.take(rows), self.device)

    def targets(self, rows: Tensor) -> Tensor:
        if isinstance(self.y, Ragged):
            return inputs.to(self.y.take(rows.cpu()), self.device)
        return self.y.index_select(0, inputs.to(rows, self.device))

    def rows_of(self, part: Part) -> Tensor:
        """The rows here of a part's examples, in its order."""
        rows = torch.from_numpy(part.rows)
        if self.starts is None:
            return rows
        sizes = self.starts[rows + 1] - self.starts[rows]
        shift = (self.starts[rows] - (sizes.cumsum(0) - sizes)).repeat_interleave(sizes)
        return torch.arange(len(shift)) + shift

    def origins(self, rows: Tensor) -> Tensor:
        """The raw examples that these rows were made of."""
        return rows if self.starts is None else torch.searchsorted(self.starts, rows, right=True) - 1

    def inputs_and_targets(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Inputs and targets; rows of a tensor travel to the device once for both."""
        if isinstance(self.store, TensorStore):
            rows = inputs.to(rows, self.device)
        return self.inputs(rows), self.targets(rows)

    def one_pass(self, parts: Sequence[Part], size: int) -> Iterator[DomainBatch]:
        """One pass over the parts in order, each batch from one domain."""
        for part in parts:
            for rows in self.rows_of(part).split(size):
                yield DomainBatch(*self.inputs_and_targets(rows), (self.index[part.domain],), (len(rows),))

    def iter_batches(
        self, rows: np.ndarray, *, together: tuple[int, int] | None = None, shared: bool = False
    ) -> Iterator[tuple[Tensor, Inputs, Tensor]]:
        """Many rows in large even batches: places among the rows, inputs, targets.

        Where rows change each other's value, `together` says how many make a batch and the seed to shuffle them by.
        Where they are shared, each process of a run gets some of the batches.
        """
        wanted = torch.from_numpy(np.ascontiguousarray(rows))
        even = together is None
        cut = even_chunks(self.store, wanted, self.device) if even else shuffled_chunks(len(wanted), *together)
        for at in islice(cut, parallel.rank(), None, parallel.world_size()) if shared else cut:
            yield at, *self.inputs_and_targets(wanted[at])

    @torch.no_grad()
    def map(
        self,
        function: Callable[..., Tensor],
        rows: np.ndarray,
        tick: Callable[[int], None] | None = None,
        *,
        together: tuple[int, int] | None = None,
        targets: bool = False,
        shared: bool = False,
    ) -> Tensor:
        """A function of inputs, and of targets if asked, over many rows; (n, ...) on the CPU, in the rows' order.

        Where it is shared, all processes of a run come here, each does some of the rows, and all get everything.
        """
        found = []
        for at, x, y in self.iter_batches(rows, together=together, shared=shared):
            found.append((at, (function(x, y) if targets else function(x)).float()))
            if tick is not None:
                tick(len(at))
        found = [(at, value.cpu()) for at, value in found]
        every = [each for one in parallel.all_gather(found) for each in one] if shared else found
        order = torch.cat([at for at, _ in every])
        return torch.cat([value for _, value in every])[order.argsort()]


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
    cache: Path | None = None,
) -> Store:
    """Run a backbone's `prepare` over all raw examples, a chunk at a time; image files go through the cache folder."""
    images = decoded(raw, size, cache, tick=tick) if cache is not None and size is not None else None
    if images is not None:
        return make(images)
    chunk = 256 if raw.kind == "image" else 4096
    parts = []
    for start in range(0, len(raw), chunk):
        rows = np.arange(start, min(start + chunk, len(raw)))
        parts.append(make(raw.take(rows, size=size)))
        if tick is not None:
            tick(len(rows))
    return join(parts)
