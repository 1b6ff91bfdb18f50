"""Batches for training and evaluation."""

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
from holdfast.data.cache import decoded_images
from holdfast.data.raw import Raw
from holdfast.data.splits import Part

Transform = Callable[[Any, torch.Generator], Any]  # inputs -> inputs
Augment = Callable[[Any, Tensor, torch.Generator], tuple[Any, Tensor]]  # (inputs, targets) -> (inputs, targets)
MIN_BATCH_LIMIT = 1024  # a batch size up to this is accepted even if there are fewer examples

# tokens (or nodes) per batch of texts (or graphs) in evaluation: on a CPU, activations should stay in its cache
TOKENS_PER_BATCH = {"cpu": 4096, "cuda": 65536}
FEATURES_PER_BATCH = 1024
IMAGES_PER_BATCH = 256


class ForbiddenRow(RuntimeError):
    """A restored position has a row outside the parts that a sampler may use."""


class Batches:
    """Endless iterator over `DomainBatch`es from `domain_parts`, `size` examples per part, with a resumable position.

    Rows are drawn without replacement within a pass over a domain; with several processes, each one takes its share of
    the same draw. `transform` changes inputs and `augment` inputs and targets; both draw from `transform_generator`,
    which defaults to `generator`.

    With `domains_per_step`, a batch has that many of the parts, drawn without replacement within a pass over the parts;
    the last `always` parts, which have no labels, are in every batch and not counted.
    """

    def __init__(
        self, examples: Examples, domain_parts: Sequence[Part], size: int, *, generator: torch.Generator,
        transform: Transform | None = None, augment: Augment | None = None,
        transform_generator: torch.Generator | None = None, domains_per_step: int = 0, always: int = 0,
    ) -> None:  # fmt: skip
        self.examples, self.size, self.generator = examples, size, generator
        self.transform_generator = transform_generator or generator
        self.transform, self.augment = transform, augment
        self.rows = [examples.rows_of(part) for part in domain_parts]
        for part, rows in zip(domain_parts, self.rows, strict=True):
            if not len(rows):
                raise BadInput(f"domain '{part.domain}' has no training examples: add some or remove the domain")
        if size > max(MIN_BATCH_LIMIT, available := sum(map(len, self.rows))):
            raise BadInput(f"batch size {size:,} exceeds the {available:,} training examples: lower --batch")
        self.domains = tuple(examples.index[part.domain] for part in domain_parts)
        self.drawn = torch.zeros(0, dtype=torch.long)  # rows of the latest batch
        self.order = [rows[:0] for rows in self.rows]  # remaining rows of each domain's current pass
        labelled = len(self.rows) - always
        self.per_step = domains_per_step if 0 < domains_per_step < labelled else 0  # 0: all of them
        self.labelled = range(labelled)
        self.turn: list[int] = []  # remaining parts of the current pass over the parts

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> DomainBatch:
        places = self._next_parts() if self.per_step else range(len(self.rows))
        self.drawn = torch.cat([self._draw(i) for i in places])
        x, y = self.examples.inputs_and_targets(self.drawn)
        if self.transform is not None:
            x = self.transform(x, self.transform_generator)
        if self.augment is not None:
            x, y = self.augment(x, y, self.transform_generator)
        drawn = inputs.to(torch.tensor(places), self.examples.device) if self.per_step else None
        return DomainBatch(x, y, tuple(self.domains[i] for i in places), (self.size,) * len(places), drawn)

    def _next_parts(self) -> list[int]:
        """Return the parts of the next batch in order; if a pass ends inside a batch, a new one starts.

        A part that is in the batch already is left for the next one.
        """
        chosen, self.turn = self.turn[: self.per_step], self.turn[self.per_step :]
        if len(chosen) < self.per_step:
            new = torch.randperm(len(self.labelled), generator=self.generator).tolist()
            added = [i for i in new if i not in chosen][: self.per_step - len(chosen)]
            self.turn = [i for i in new if i not in added]
            chosen += added
        return [*sorted(chosen), *range(len(self.labelled), len(self.rows))]

    def _draw(self, i: int) -> Tensor:
        """Return the next `size` rows of the i-th domain; if a pass ends inside a batch, a new one starts."""
        left, total, first = self.order[i], self.size * parallel.world_size(), self.size * parallel.rank()
        while len(left) < total:
            rows = self.rows[i]
            left = torch.cat([left, rows[torch.randperm(len(rows), generator=self.generator)]])
        self.order[i] = left[total:]
        return left[first : first + self.size]

    def examples_per_domain(self, count: int) -> Iterator[DomainBatch]:
        """Iterate over `count` evenly spaced examples per domain, one domain per batch; the position stays.

        Where a batch has some of the domains, that many domains are visited, evenly spaced.
        """
        most = min(len(self.rows), self.per_step or len(self.rows))
        for i in torch.linspace(0, len(self.rows) - 1, most).long().tolist():
            rows = self.rows[i]
            spaced = rows[torch.linspace(0, len(rows) - 1, min(count, len(rows))).long()]
            for drawn in spaced.split(self.size):
                yield DomainBatch(*self.examples.inputs_and_targets(drawn), (self.domains[i],), (len(drawn),))

    def one_pass(self) -> Iterator[DomainBatch]:
        """Iterate once over all rows in large batches of one domain each, without changes; the position stays."""
        for domain, rows in zip(self.domains, self.rows, strict=True):
            for at in chunks_by_length(self.examples.store, rows, self.examples.device):
                yield DomainBatch(*self.examples.inputs_and_targets(rows[at]), (domain,), (len(at),))

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the generator's state and the remaining rows, and parts if a batch has some of them."""
        state = {"generator": self.generator.get_state(), "order": [order.clone() for order in self.order]}
        return state | ({"turn": list(self.turn)} if self.per_step else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position; raise if it refers to rows outside the parts."""
        remaining = torch.cat(list(state["order"]))
        outside = remaining[~torch.isin(remaining, torch.cat(self.rows))].tolist()
        if outside:
            raise ForbiddenRow(f"rows {outside[:5]} are outside the parts that this stage may train on")
        self.generator.set_state(state["generator"])
        self.order, self.turn = list(state["order"]), list(state.get("turn", []))


class Examples:
    """A store of inputs with their targets and the names of the domains.

    Targets are one number per example, or rows of numbers. If a raw example yields several inputs, such as windows of
    a long text, the inputs of the i-th example are the rows from `starts[i]` to `starts[i + 1]`.
    """

    store: Store
    y: Tensor | Ragged
    index: dict[str, int]  # domain -> its place among the domains
    device: torch.device
    starts: Tensor | None

    def __init__(
        self, store: Store, y: Tensor | Ragged, domains: Sequence[str], *,
        device: torch.device | str = "cpu", starts: Tensor | None = None,
    ) -> None:  # fmt: skip
        assert len(store) == len(y)
        self.store, self.device, self.starts = store.to(device), torch.device(device), starts
        self.y = y if isinstance(y, Ragged) else y.to(device)
        self.index = {name: i for i, name in enumerate(domains)}

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, rows: Tensor) -> Inputs:
        """Return the inputs of these rows on the device."""
        return inputs.to(self.store.take(rows), self.device)

    def targets(self, rows: Tensor) -> Tensor:
        """Return the targets of these rows on the device."""
        if isinstance(self.y, Ragged):
            return inputs.to(self.y.take(rows.cpu()), self.device)
        return self.y.index_select(0, inputs.to(rows, self.device))

    def inputs_and_targets(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Return inputs and targets; row indices of a tensor store on the device are moved there once."""
        if isinstance(self.store, TensorStore) and self.store.data.device.type == self.device.type:
            rows = inputs.to(rows, self.device)
        return self.inputs(rows), self.targets(rows)

    def rows_of(self, part: Part) -> Tensor:
        """Return the rows of the store that belong to a part's examples, in its order."""
        rows = torch.from_numpy(part.rows)
        if self.starts is None:
            return rows
        return inputs.spans(self.starts[rows], self.starts[rows + 1] - self.starts[rows])

    def origins(self, rows: Tensor) -> Tensor:
        """Return the raw examples from which these rows were made."""
        return rows if self.starts is None else torch.searchsorted(self.starts, rows, right=True) - 1

    def one_pass(self, domain_parts: Sequence[Part], size: int) -> Iterator[DomainBatch]:
        """Iterate once over the parts in order, with one domain per batch."""
        for part in domain_parts:
            for rows in self.rows_of(part).split(size):
                yield DomainBatch(*self.inputs_and_targets(rows), (self.index[part.domain],), (len(rows),))

    def iter_batches(
        self, rows: np.ndarray, *, prediction_batch: tuple[int, int] | None = None, shared: bool = False
    ) -> Iterator[tuple[Tensor, Inputs, Tensor]]:
        """Yield (positions among `rows`, inputs, targets) in large batches.

        If the outputs of a model depend on the batch, `prediction_batch` is the batch size and the seed of the order.
        With `shared`, each process of a run gets some of the batches.
        """
        chosen = torch.from_numpy(np.ascontiguousarray(rows))
        if prediction_batch is None:
            chunks = chunks_by_length(self.store, chosen, self.device)
        else:
            chunks = shuffled_chunks(len(chosen), *prediction_batch)
        for at in islice(chunks, parallel.rank(), None, parallel.world_size()) if shared else chunks:
            yield at, *self.inputs_and_targets(chosen[at])

    @property
    def fills_batches(self) -> bool:
        """Whether batches are filled with copies of their last example: images on a GPU.

        For every new size of a batch, cuDNN prepares each convolution of a network, which takes seconds.
        """
        return self.device.type == "cuda" and isinstance(self.store, TensorStore) and self.store.data.ndim > 2

    @torch.no_grad()
    def map(
        self, function: Callable[..., Tensor], rows: np.ndarray, tick: Callable[[int], None] | None = None, *,
        prediction_batch: tuple[int, int] | None = None, targets: bool = False, shared: bool = False,
    ) -> Tensor:  # fmt: skip
        """Apply a function of inputs (and targets) to many rows; (n, ...) on the CPU, in the order of `rows`.

        With `shared`, all processes of a run must call it; each computes some of the rows and all get the result.
        """
        results, own = [], prediction_batch is None and self.fills_batches
        for at, x, y in self.iter_batches(rows, prediction_batch=prediction_batch, shared=shared):
            if own and len(at) < IMAGES_PER_BATCH:
                fill = torch.arange(IMAGES_PER_BATCH, device=self.device).clamp(max=len(at) - 1)
                x, y = inputs.take(x, fill), inputs.take(y, fill)
            results.append((at, (function(x, y) if targets else function(x)).float()[: len(at)]))
            if tick is not None:
                tick(len(at))
        results = [(at, value.cpu()) for at, value in results]
        if shared:
            results = [result for process in parallel.all_gather(results) for result in process]
        order = torch.cat([at for at, _ in results])
        return torch.cat([value for _, value in results])[order.argsort()]


def chunks_by_length(store: Store, rows: Tensor, device: torch.device) -> Iterator[Tensor]:
    """Yield positions in `rows` in chunks of similar length and bounded size, to limit padding."""
    budget = TOKENS_PER_BATCH.get(device.type, TOKENS_PER_BATCH["cpu"])
    lengths = store.lengths()
    if lengths is None:
        first = store.take(rows[:1])
        image = isinstance(first, Tensor) and first.ndim > 2
        yield from torch.arange(len(rows)).split(IMAGES_PER_BATCH if image else FEATURES_PER_BATCH)
        return
    order = lengths[rows].argsort(stable=True)
    longest = lengths[rows][order].tolist()
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or (end + 1 - start) * longest[end] > budget:
            yield order[start:end]
            start = end


def shuffled_chunks(count: int, size: int, seed: int) -> Iterator[Tensor]:
    """Yield positions in random order in chunks of about `size`, all of nearly equal size."""
    order = torch.randperm(count, generator=generator(seed, "together"))
    yield from order.tensor_split(max(1, round(count / size)))


def prepare(
    raw: Raw, make: Callable[..., Store], *,
    size: int | None = None, tick: Callable[[int], None] | None = None, cache: Path | None = None,
) -> Store:  # fmt: skip
    """Run a backbone's `prepare` over all raw examples in chunks; image files are decoded through the cache folder."""
    images = decoded_images(raw, size, cache, tick=tick) if cache is not None and size is not None else None
    if images is not None:
        return make(images)
    chunk = 256 if raw.kind == "image" else 4096
    stores = []
    for start in range(0, len(raw), chunk):
        rows = np.arange(start, min(start + chunk, len(raw)))
        stores.append(make(raw.take(rows, size=size)))
        if tick is not None:
            tick(len(rows))
    return join(stores)
