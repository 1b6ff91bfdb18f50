"""Prepared examples of a data set in memory; `take` builds the inputs of a batch (n examples, b batch)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.core import inputs
from holdfast.core.inputs import Graphs, Inputs, Joint, Tokens
from holdfast.core.ragged import Ragged

Rows = Sequence[Sequence[int]]
SHARE = 0.25  # of the free GPU memory that examples may use


class Store(ABC):
    """Prepared examples, indexed by row."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: Tensor) -> Inputs:
        """Return the inputs of the given rows (b,), in that order."""

    def to(self, device: torch.device | str) -> Store:
        """Move the examples to a device where that makes batches faster; texts are padded on the CPU first."""
        return self

    def lengths(self) -> Tensor | None:
        """Return (n,) the length of each example, or None if all have the same."""
        return None


class TensorStore(Store):
    """Rows of one tensor: features, or images as uint8."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def take(self, rows: Tensor) -> Tensor:
        return self.data.index_select(0, rows.to(self.data.device))

    def to(self, device: torch.device | str) -> TensorStore:
        """Move all rows, unless they need too much GPU memory; then batches are copied one by one."""
        if torch.device(device).type == "cuda" and not self.data.is_cuda:
            free, _ = torch.cuda.mem_get_info(device)
            if self.data.nbytes > SHARE * free:
                return self
        return TensorStore(self.data.to(device))


class TokenStore(Store):
    """Token ids of all texts, padded per batch, and the positions `at` for tasks with one output per position."""

    def __init__(self, ids: Ragged, *, pad: int, types: Ragged | None = None, at: Ragged | None = None) -> None:
        self.ids, self.pad, self.types, self.at = ids, pad, types, at

    @staticmethod
    def build(rows: Rows, *, pad: int, types: Rows | None = None, at: Rows | None = None) -> TokenStore:
        segments = None if types is None else Ragged.build(types, np.int32)
        positions = None if at is None else Ragged.build(at)
        return TokenStore(Ragged.build(rows, np.int32), pad=pad, types=segments, at=positions)

    def __len__(self) -> int:
        return len(self.ids)

    def lengths(self) -> Tensor:
        return self.ids.starts.diff()

    def take(self, rows: Tensor) -> Tokens:
        rows = rows.cpu()
        types = None if self.types is None else self.types.take(rows, padding=0)
        at = None if self.at is None else self.at.take(rows)
        return Tokens(self.ids.take(rows, padding=self.pad), self.ids.mask(rows), types, at)


class GraphStore(Store):
    """Graphs, one `Graphs` object per example."""

    def __init__(self, graphs: Sequence[Graphs]) -> None:
        self.graphs = list(graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def lengths(self) -> Tensor:
        return torch.tensor([len(g.nodes) for g in self.graphs])

    def take(self, rows: Tensor) -> Graphs:
        return inputs.cat([self.graphs[i] for i in rows.tolist()])

    def to(self, device: torch.device | str) -> GraphStore:
        return GraphStore([inputs.to(g, device) for g in self.graphs])


class JointStore(Store):
    """Examples in two forms."""

    def __init__(self, first: Store, second: Store) -> None:
        assert len(first) == len(second)
        self.first, self.second = first, second

    def __len__(self) -> int:
        return len(self.first)

    def lengths(self) -> Tensor | None:
        lengths = [each for store in (self.first, self.second) if (each := store.lengths()) is not None]
        return torch.stack(lengths).sum(0) if lengths else None

    def take(self, rows: Tensor) -> Joint:
        return Joint(self.first.take(rows), self.second.take(rows))

    def to(self, device: torch.device | str) -> JointStore:
        return JointStore(self.first.to(device), self.second.to(device))


def join(stores: Sequence[Store]) -> Store:
    first = stores[0]
    if isinstance(first, TensorStore):
        return TensorStore(torch.cat([s.data for s in stores if isinstance(s, TensorStore)]))
    if isinstance(first, JointStore):
        pairs = [s for s in stores if isinstance(s, JointStore)]
        return JointStore(join([s.first for s in pairs]), join([s.second for s in pairs]))
    if isinstance(first, GraphStore):
        return GraphStore([g for s in stores if isinstance(s, GraphStore) for g in s.graphs])
    tokens = [s for s in stores if isinstance(s, TokenStore)]
    assert len(tokens) == len(stores), "stores of different kinds cannot be joined"
    types = [s.types for s in tokens if s.types is not None]
    positions = [s.at for s in tokens if s.at is not None]
    return TokenStore(
        Ragged.join([s.ids for s in tokens]),
        pad=tokens[0].pad,
        types=Ragged.join(types) if types else None,
        at=Ragged.join(positions) if positions else None,
    )
