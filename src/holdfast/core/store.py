"""Prepared examples of a data set in memory; `take` builds the inputs of a batch.

Shapes: n examples, b batch, t tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.core import inputs
from holdfast.core.inputs import Graphs, Inputs, Tokens
from holdfast.core.ragged import Ragged

SHARE = 0.25  # of the free GPU memory that examples may use


class Store(ABC):
    """Prepared examples, indexed by row."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: Tensor) -> Inputs:
        """Return the inputs of the given rows (b,), in that order."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Store:
        """Move the examples to a device where that makes batches faster."""

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
    """Token ids of all texts, stored end to end; a batch is padded to its longest text.

    `at` has the positions of every text for tasks with one output per position.
    """

    def __init__(
        self, ids: Tensor, starts: Tensor, *, pad: int, types: Tensor | None = None, at: Ragged | None = None
    ) -> None:
        self.ids, self.starts, self.pad, self.types, self.at = ids, starts, pad, types, at  # (all,), (n + 1,)

    @staticmethod
    def build(
        rows: Sequence[Sequence[int]],
        *,
        pad: int,
        types: Sequence[Sequence[int]] | None = None,
        at: Sequence[Sequence[int]] | None = None,
    ) -> TokenStore:
        flat = [np.fromiter((i for row in table for i in row), dtype=np.int32) for table in (rows, types or [])]
        sizes = torch.tensor([0, *(len(row) for row in rows)])
        return TokenStore(
            torch.from_numpy(flat[0]),
            sizes.cumsum(0),
            pad=pad,
            types=None if types is None else torch.from_numpy(flat[1]),
            at=None if at is None else Ragged.build(at),
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self) -> Tensor:
        return self.starts.diff()

    def take(self, rows: Tensor) -> Tokens:
        rows = rows.cpu()
        start, size = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        offset = torch.arange(int(size.max()) if len(rows) else 0)  # (t,)
        mask = offset < size[:, None]  # (b, t)
        at = (start[:, None] + offset).clamp(max=max(len(self.ids) - 1, 0))
        ids = torch.where(mask, self.ids[at].long(), self.pad)
        types = None if self.types is None else torch.where(mask, self.types[at].long(), 0)
        return Tokens(ids, mask, types, None if self.at is None else self.at.take(rows))

    def to(self, device: torch.device | str) -> TokenStore:
        return self  # texts are padded on the CPU, then the batch is moved


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


def join(stores: Sequence[Store]) -> Store:
    """Concatenate stores of one kind."""
    first = stores[0]
    if isinstance(first, TensorStore):
        return TensorStore(torch.cat([s.data for s in stores if isinstance(s, TensorStore)]))
    if isinstance(first, GraphStore):
        return GraphStore([g for s in stores if isinstance(s, GraphStore) for g in s.graphs])
    tokens = [s for s in stores if isinstance(s, TokenStore)]
    assert len(tokens) == len(stores), "stores of different kinds cannot be joined"
    types = [s.types for s in tokens if s.types is not None]
    positions = [s.at for s in tokens if s.at is not None]
    sizes = torch.cat([s.lengths() for s in tokens])
    starts = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    return TokenStore(
        torch.cat([s.ids for s in tokens]),
        starts,
        pad=tokens[0].pad,
        types=torch.cat(types) if types else None,
        at=Ragged.join(positions) if positions else None,
    )
