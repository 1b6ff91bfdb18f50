"""Prepared examples of a data set in memory; `take` builds the inputs of a batch (n examples, b batch)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from holdfast.core import inputs
from holdfast.core.inputs import Graphs, Inputs, Joint, Tokens
from holdfast.core.ragged import Ragged

Rows = Sequence[Sequence[int]]
LENGTH_MULTIPLES = {64: 32, 512: 64}  # longest text -> multiple of padded lengths on a GPU; of longer texts LARGEST
LARGEST_MULTIPLE = 128
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
    """Rows of one tensor: features, or images as uint8; batches are `pinned` in memory if they are copied to a GPU."""

    def __init__(self, data: Tensor, *, pinned: bool = False) -> None:
        self.data, self.pinned = data, pinned

    def __len__(self) -> int:
        return len(self.data)

    def take(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.data.device)
        if not self.pinned:
            return self.data.index_select(0, rows)
        batch = torch.empty((len(rows), *self.data.shape[1:]), dtype=self.data.dtype, pin_memory=True)
        return torch.index_select(self.data, 0, rows, out=batch)

    def to(self, device: torch.device | str) -> TensorStore:
        """Move all rows, unless they need too much GPU memory; then batches are copied one by one."""
        if torch.device(device).type == "cuda" and not self.data.is_cuda:
            free, _ = torch.cuda.mem_get_info(device)
            if self.data.nbytes > SHARE * free:
                return TensorStore(self.data, pinned=True)
        return TensorStore(self.data.to(device))


class TokenStore(Store):
    """Token ids of all texts, padded per batch, and the positions `at` for tasks with one output per position."""

    def __init__(
        self, ids: Ragged, *, pad: int, types: Ragged | None = None, at: Ragged | None = None, multiple: int = 1
    ) -> None:
        self.ids, self.pad, self.types, self.at = ids, pad, types, at
        self.multiple = multiple  # of the padded length of a batch, up to the longest text

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
        tokens = Tokens(self.ids.take(rows, padding=self.pad), self.ids.mask(rows), types, at)
        return tokens if self.multiple == 1 else self._widened(tokens)

    def _widened(self, tokens: Tokens) -> Tokens:
        """Pad to a multiple of the length, so that the shapes of batches repeat."""
        width = tokens.ids.shape[1]
        more = min(-(-width // self.multiple) * self.multiple, int(self.ids.starts.diff().max())) - width
        ids, mask = pad(tokens.ids, (0, more), value=self.pad), pad(tokens.mask, (0, more), value=False)
        return Tokens(ids, mask, None if tokens.types is None else pad(tokens.types, (0, more)), tokens.at)

    def to(self, device: torch.device | str) -> TokenStore:
        """Keep the texts on the CPU; on a GPU few lengths of batches are used, each with its own CUDA graph."""
        multiple = 1
        if torch.device(device).type == "cuda" and len(self):
            longest = int(self.ids.starts.diff().max())
            multiple = next((each for most, each in LENGTH_MULTIPLES.items() if longest <= most), LARGEST_MULTIPLE)
        return type(self)(self.ids, pad=self.pad, types=self.types, at=self.at, multiple=multiple)


class StateStore(Store):
    """States of a frozen encoder at the positions of each text, stored end to end in fp16, padded with 0 per batch."""

    def __init__(self, states: Tensor, sizes: Tensor) -> None:
        assert int(sizes.sum()) == len(states)
        self.states, self.sizes = states, sizes  # (all positions, d), (n,) positions per text
        self.starts = sizes.cumsum(0) - sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def lengths(self) -> Tensor:
        return self.sizes

    def take(self, rows: Tensor) -> Tensor:
        """Return (b, k, d) the states of the rows as fp32, padded to the longest of them."""
        rows = rows.cpu()
        starts, sizes = self.starts[rows], self.sizes[rows]
        batch = torch.zeros(len(rows), int(sizes.max()), self.states.shape[1])
        at = inputs.spans(torch.arange(len(rows)) * batch.shape[1], sizes)
        batch.flatten(0, 1)[at] = self.states[inputs.spans(starts, sizes)].float()
        return batch


class GraphStore(Store):
    """All graphs as one disconnected graph, from which batches are gathered on its device.

    The numbers of nodes and edges per graph stay on the CPU, so that the CPU knows the size of a batch without waiting
    for the device.
    """

    def __init__(self, graphs: Graphs, nodes: Tensor, edges: Tensor) -> None:
        assert len(graphs) == len(nodes) == len(edges)
        self.graphs, self.nodes, self.edges = graphs, nodes, edges  # the numbers of nodes and edges have shape (n,)

    @staticmethod
    def build(graphs: Sequence[Graphs]) -> GraphStore:
        """Join graphs, each a `Graphs` of one graph."""
        nodes = torch.tensor([len(graph.nodes) for graph in graphs])
        return GraphStore(inputs.cat(graphs), nodes, torch.tensor([graph.edges.shape[1] for graph in graphs]))

    def __len__(self) -> int:
        return len(self.nodes)

    def lengths(self) -> Tensor:
        return self.nodes

    def take(self, rows: Tensor) -> Graphs:
        return self.graphs.gather(rows.cpu(), self.nodes, self.edges)

    def to(self, device: torch.device | str) -> GraphStore:
        return GraphStore(inputs.to(self.graphs, device), self.nodes, self.edges)


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
        packed = [s for s in stores if isinstance(s, GraphStore)]
        sizes = (torch.cat([s.nodes for s in packed]), torch.cat([s.edges for s in packed]))
        return GraphStore(inputs.cat([s.graphs for s in packed]), *sizes)
    tokens = [s for s in stores if isinstance(s, TokenStore)]
    assert len(tokens) == len(stores), "stores of different kinds cannot be joined"
    types = [s.types for s in tokens if s.types is not None]
    positions = [s.at for s in tokens if s.at is not None]
    return type(tokens[0])(
        Ragged.join([s.ids for s in tokens]),
        pad=tokens[0].pad,
        types=Ragged.join(types) if types else None,
        at=Ragged.join(positions) if positions else None,
    )
