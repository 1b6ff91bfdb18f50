"""All prepared examples of a data set, held compactly; `take` makes the inputs of one batch from rows.

n examples, t tokens, d width
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

SHARE = 0.25  # of the free memory of a GPU that examples may take


class Store(ABC):
    """Prepared examples by row."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: Tensor) -> Inputs:
        """The inputs of these rows (n,), in that order."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Store:
        """The same examples, on the device where that is worth it."""

    def lengths(self) -> Tensor | None:
        """(n,) the cost of each example where examples differ in length, so that batches can be even."""
        return None


class TensorStore(Store):
    """Rows of one tensor: features, images as uint8."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def take(self, rows: Tensor) -> Tensor:
        return self.data.index_select(0, rows.to(self.data.device))

    def to(self, device: torch.device | str) -> TensorStore:
        """All of it there, unless that would take more than a share of a GPU; then each batch travels."""
        if torch.device(device).type == "cuda" and not self.data.is_cuda:
            free, _ = torch.cuda.mem_get_info(device)
            if self.data.nbytes > SHARE * free:
                return self
        return TensorStore(self.data.to(device))


class TokenStore(Store):
    """Token ids of all texts laid end to end; a batch is padded to its own longest text only.

    Where a task asks for the states of some tokens, their places lie beside them.
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
        flat = [np.fromiter((i for row in part for i in row), dtype=np.int32) for part in (rows, types or [])]
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
        reach = torch.arange(int(size.max()) if len(rows) else 0)  # (t,)
        mask = reach < size[:, None]  # (b, t)
        at = (start[:, None] + reach).clamp(max=max(len(self.ids) - 1, 0))
        ids = torch.where(mask, self.ids[at].long(), self.pad)
        types = None if self.types is None else torch.where(mask, self.types[at].long(), 0)
        return Tokens(ids, mask, types, None if self.at is None else self.at.take(rows))

    def to(self, device: torch.device | str) -> TokenStore:
        return self  # ragged rows are padded on the CPU; the batch travels


class GraphStore(Store):
    """One Graphs of a single graph per example."""

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


def join(parts: Sequence[Store]) -> Store:
    """Stores of one kind, one after another."""
    first = parts[0]
    if isinstance(first, TensorStore):
        return TensorStore(torch.cat([p.data for p in parts if isinstance(p, TensorStore)]))
    if isinstance(first, GraphStore):
        return GraphStore([g for p in parts if isinstance(p, GraphStore) for g in p.graphs])
    tokens = [p for p in parts if isinstance(p, TokenStore)]
    assert len(tokens) == len(parts), "stores of different kinds cannot be joined"
    types = [p.types for p in tokens if p.types is not None]
    places = [p.at for p in tokens if p.at is not None]
    sizes = torch.cat([p.lengths() for p in tokens])
    starts = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    return TokenStore(
        torch.cat([p.ids for p in tokens]),
        starts,
        pad=tokens[0].pad,
        types=torch.cat(types) if types else None,
        at=Ragged.join(places) if places else None,
    )
