"""Inputs of a backbone: a tensor, tokens, graphs or two of these, with functions that work on all of them.

Shapes: b batch, t tokens, k positions, v nodes of all graphs, e edges, d width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.core.ragged import cat_padded

PINNED_BYTES = 2**16  # of tensors that are copied to a GPU from pinned memory; smaller ones are staged by the driver
Rows = Any  # a slice, a list of ints or a tensor of ints


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids, the mask of real tokens and, for text pairs, the segment of each token.

    With positions `at` the backbone returns one state per position instead of one feature per text.
    """

    ids: Tensor  # (b, t) int64
    mask: Tensor  # (b, t) bool
    types: Tensor | None = None  # (b, t) int64
    at: Tensor | None = None  # (b, k) int64, positions, padded with -1

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Rows) -> Tokens:
        return map_tensors(lambda t: t[rows], self)

    @staticmethod
    def cat(batches: Sequence[Tokens]) -> Tokens:
        ids, mask = cat_padded([b.ids for b in batches], 0), cat_padded([b.mask for b in batches], 0)
        types = [b.types for b in batches if b.types is not None]
        positions = [b.at for b in batches if b.at is not None]
        return Tokens(ids, mask, cat_padded(types, 0) if types else None, cat_padded(positions) if positions else None)


@dataclass(frozen=True, slots=True)
class Graphs:
    """Several graphs as one disconnected graph, with the index of the graph that each node belongs to."""

    nodes: Tensor  # (v, d) node features
    edges: Tensor  # (2, e) node indices within this batch
    owner: Tensor  # (v,) index of each node's graph, ascending
    count: int
    weights: Tensor | None = None  # (e, d) edge features

    @staticmethod
    def single(nodes: Tensor, edges: Tensor, weights: Tensor | None = None) -> Graphs:
        """Build the batch of one graph."""
        return Graphs(nodes, edges, torch.zeros(len(nodes), dtype=torch.long), 1, weights)

    def __len__(self) -> int:
        return self.count

    def take(self, rows: Rows) -> Graphs:
        """Return the graphs at `rows`, in that order."""
        edge_owner = self.owner[self.edges[0]]
        order, weights = edge_owner.argsort(stable=True), self.weights
        ordered = replace(self, edges=self.edges[:, order], weights=None if weights is None else weights[order])
        sizes, edge_sizes = (each.bincount(minlength=self.count).cpu() for each in (self.owner, edge_owner))
        chosen = torch.arange(self.count, device=self.owner.device)[rows].cpu()
        return ordered.gather(chosen, sizes, edge_sizes)

    def gather(self, rows: Tensor, nodes: Tensor, edges: Tensor) -> Graphs:
        """Return the graphs at `rows` (b,), given the numbers of nodes and edges (n,) of all graphs on the CPU.

        The edges are in the order of the graphs. The device is not waited for.
        """
        own, own_edges, device = nodes[rows], edges[rows], self.nodes.device
        # per graph: its index and the shifts of its nodes and edges, copied to the device at once; a graph may be taken
        # twice: its edges are copied for each occurrence and shifted to the new nodes
        shifts = [(sizes.cumsum(0) - sizes)[rows] - (sizes[rows].cumsum(0) - sizes[rows]) for sizes in (nodes, edges)]
        moved = to(torch.stack([own, own_edges, torch.arange(len(rows)), *shifts]), device)
        counts, edge_counts, index, node_shift, edge_shift = moved.unbind(0)
        v, e = int(own.sum()), int(own_edges.sum())
        owner = index.repeat_interleave(counts, output_size=v)  # (v,)
        edge_owner = index.repeat_interleave(edge_counts, output_size=e)  # (e,)
        at = torch.arange(e, device=device) + edge_shift[edge_owner]
        return Graphs(
            nodes=self.nodes[torch.arange(v, device=device) + node_shift[owner]],
            edges=self.edges[:, at] - node_shift[edge_owner],
            owner=owner,
            count=len(rows),
            weights=None if self.weights is None else self.weights[at],
        )

    @staticmethod
    def cat(batches: Sequence[Graphs]) -> Graphs:
        """Concatenate batches of graphs."""
        first_node = accumulate((len(b.nodes) for b in batches), initial=0)
        first_graph = accumulate((b.count for b in batches), initial=0)
        weights = [b.weights for b in batches if b.weights is not None]
        return Graphs(
            nodes=torch.cat([b.nodes for b in batches]),
            edges=torch.cat([b.edges + at for b, at in zip(batches, first_node, strict=False)], dim=1),
            owner=torch.cat([b.owner + at for b, at in zip(batches, first_graph, strict=False)]),
            count=sum(b.count for b in batches),
            weights=torch.cat(weights) if weights else None,
        )


@dataclass(frozen=True, slots=True)
class Joint:
    """Two inputs per example, for an encoder that consists of two."""

    first: Any  # b examples
    second: Any  # the same examples in another form

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: Rows) -> Joint:
        return Joint(take(self.first, rows), take(self.second, rows))

    @staticmethod
    def cat(batches: Sequence[Joint]) -> Joint:
        return Joint(cat([b.first for b in batches]), cat([b.second for b in batches]))


Inputs = Tensor | Tokens | Graphs | Joint


def size(x: Any) -> int:
    """Return the number of examples."""
    if not isinstance(x, Inputs):
        raise TypeError(f"inputs must be a Tensor, Tokens, Graphs or Joint, not {type(x).__name__}")
    return len(x)


def take(x: Any, rows: Rows) -> Any:
    """Return the examples at `rows`, in that order."""
    return x[rows] if isinstance(x, Tensor) else x.take(rows)


def to(x: Any, device: torch.device | str) -> Any:
    """Copy the inputs to a device; copies to a GPU run while the CPU continues and the GPU computes."""
    device = torch.device(device)
    if device.type != "cuda":  # the CPU would read a tensor before it has arrived
        return map_tensors(lambda t: t.to(device), x)
    return map_tensors(lambda t: _to_gpu(t, device), x)


def _to_gpu(t: Tensor, device: torch.device) -> Tensor:
    """Copy large tensors from pinned memory on a stream of their own: other copies wait until the GPU is idle."""
    if t.is_cuda or t.nbytes < PINNED_BYTES:
        return t.to(device, non_blocking=True)
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copied = (t if t.is_pinned() else t.pin_memory()).to(device, non_blocking=True)
    current.wait_stream(stream)
    copied.record_stream(current)  # its memory is reused only after the work that reads it
    return copied


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def cat(batches: Sequence[Any]) -> Any:
    """Concatenate inputs of one kind."""
    if len(batches) == 1:
        return batches[0]
    return torch.cat(list(batches)) if isinstance(batches[0], Tensor) else type(batches[0]).cat(batches)


def split(x: Any, sizes: Sequence[int]) -> tuple[Any, ...]:
    """Split into consecutive pieces of the given sizes."""
    if isinstance(x, Tensor):
        return x.split(list(sizes))
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return tuple(take(x, slice(end - n, end)) for end, n in zip(ends, sizes, strict=True))


def map_tensors(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply a function to a tensor, or to every tensor of other inputs."""
    if isinstance(x, Tensor):
        return function(x)
    values = (getattr(x, field.name) for field in fields(x))
    return type(x)(*(map_tensors(function, value) if isinstance(value, Inputs) else value for value in values))


def spans(starts: Tensor, sizes: Tensor) -> Tensor:
    """Return start, start + 1, ... of every span, concatenated."""
    shift = starts - (sizes.cumsum(0) - sizes)
    return torch.arange(int(sizes.sum()), device=sizes.device) + shift.repeat_interleave(sizes)


def top_fraction(scores: Tensor, owner: Tensor, count: int, ratio: float) -> Tensor:
    """Return (k,) the indices of the nodes or edges with the best scores: a fraction per graph, rounded up."""
    order = scores.argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]
    sizes = owner.bincount(minlength=count)
    rank = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[owner[order]]
    return order[rank < (sizes * ratio).ceil()[owner[order]]]


def select_nodes(x: Graphs, mask: Tensor) -> Graphs:
    """Return the subgraphs of the nodes in a boolean mask (v,)."""
    index = torch.cumsum(mask, 0) - 1
    inside = mask[x.edges[0]] & mask[x.edges[1]]
    return Graphs(
        nodes=x.nodes[mask],
        edges=index[x.edges[:, inside]],
        owner=x.owner[mask],
        count=x.count,
        weights=None if x.weights is None else x.weights[inside],
    )


class Sentence(NamedTuple):
    """Words and the index of each word's tag; no tags at prediction time."""

    words: list[str]
    tags: list[int] | None = None


class Question(NamedTuple):
    """A question about a text; every answer is a span of the text, given by its first character."""

    context: str
    question: str
    answers: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
