"""What a backbone takes: a plain tensor, tokens of a text, or graphs; handled alike by single dispatch.

b batch, t tokens, k places, v nodes of all graphs together, e edges, d width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.core.ragged import pad_rows

Rows = Any  # a slice, a list of ints or a tensor of ints


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids with the mask of real tokens and, for text pairs, the segment each belongs to.

    Where places are given, a state of each is asked for, and not one feature of the whole.
    """

    ids: Tensor  # (b, t) int64
    mask: Tensor  # (b, t) bool
    types: Tensor | None = None  # (b, t) int64
    at: Tensor | None = None  # (b, k) int64, -1 where a row has fewer places than others


@dataclass(frozen=True, slots=True)
class Graphs:
    """Several graphs as one: nodes and edges side by side, and the graph that owns each node."""

    nodes: Tensor  # (v, d) node features
    edges: Tensor  # (2, e) node indices within this batch
    owner: Tensor  # (v,) index of each node's graph, ascending
    count: int
    weights: Tensor | None = None  # (e, d) edge features


Inputs = Tensor | Tokens | Graphs


def _reject(x: Any) -> TypeError:
    return TypeError(f"inputs are a Tensor, Tokens or Graphs, not {type(x).__name__}")


@singledispatch
def size(x: Any) -> int:
    """How many examples there are."""
    raise _reject(x)


@singledispatch
def take(x: Any, rows: Rows) -> Any:
    """The examples at `rows`, in that order."""
    raise _reject(x)


@singledispatch
def to(x: Any, device: torch.device | str) -> Any:
    """The same inputs on another device."""
    raise _reject(x)


@singledispatch
def _cat(first: Any, rest: Sequence[Any]) -> Any:
    raise _reject(first)


def cat(parts: Sequence[Any]) -> Any:
    """Several inputs of one kind, one after another."""
    return parts[0] if len(parts) == 1 else _cat(parts[0], parts[1:])


def split(x: Any, sizes: Sequence[int]) -> tuple[Any, ...]:
    """Consecutive pieces of the given sizes."""
    if isinstance(x, Tensor):
        return x.split(list(sizes))
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return tuple(take(x, slice(end - n, end)) for end, n in zip(ends, sizes, strict=True))


# tensors


@size.register
def _(x: Tensor) -> int:
    return len(x)


@take.register
def _(x: Tensor, rows: Rows) -> Tensor:
    return x[rows]


def _moved(t: Tensor, device: torch.device | str) -> Tensor:
    # towards the GPU a copy may go on behind our back; from it, the CPU would read what has not arrived
    return t.to(device, non_blocking=torch.device(device).type == "cuda")


@to.register
def _(x: Tensor, device: torch.device | str) -> Tensor:
    return _moved(x, device)


@_cat.register
def _(first: Tensor, rest: Sequence[Tensor]) -> Tensor:
    return torch.cat([first, *rest])


# tokens


@size.register
def _(x: Tokens) -> int:
    return len(x.ids)


@take.register
def _(x: Tokens, rows: Rows) -> Tokens:
    types, at = (None if part is None else part[rows] for part in (x.types, x.at))
    return Tokens(x.ids[rows], x.mask[rows], types, at)


@to.register
def _(x: Tokens, device: torch.device | str) -> Tokens:
    types, at = (None if part is None else _moved(part, device) for part in (x.types, x.at))
    return Tokens(_moved(x.ids, device), _moved(x.mask, device), types, at)


def _wide(t: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(t, (0, width - t.shape[1]))


@_cat.register
def _(first: Tokens, rest: Sequence[Tokens]) -> Tokens:
    parts = [first, *rest]
    width = max(p.ids.shape[1] for p in parts)
    types = None
    if first.types is not None:
        types = torch.cat([_wide(p.types, width) for p in parts if p.types is not None])
    places = [p.at for p in parts if p.at is not None]
    most = max((at.shape[1] for at in places), default=0)
    at = torch.cat([pad_rows(each, most) for each in places]) if places else None
    ids = torch.cat([_wide(p.ids, width) for p in parts])
    return Tokens(ids, torch.cat([_wide(p.mask, width) for p in parts]), types, at)


# graphs


@size.register
def _(x: Graphs) -> int:
    return x.count


def _spans(starts: Tensor, sizes: Tensor) -> Tensor:
    """start, start + 1, ... of each span, one span after another."""
    shift = starts - (sizes.cumsum(0) - sizes)
    return torch.arange(int(sizes.sum()), device=sizes.device) + shift.repeat_interleave(sizes)


@take.register
def _(x: Graphs, rows: Rows) -> Graphs:
    chosen = torch.arange(x.count, device=x.owner.device)[rows]
    sizes, edge_owner = torch.bincount(x.owner, minlength=x.count), x.owner[x.edges[0]]
    edge_sizes = torch.bincount(edge_owner, minlength=x.count)
    starts, edge_starts = sizes.cumsum(0) - sizes, edge_sizes.cumsum(0) - edge_sizes
    # a graph may be taken twice, so its edges are gathered for each time with their new first node
    edges = edge_owner.argsort(stable=True)[_spans(edge_starts[chosen], edge_sizes[chosen])]
    shift = sizes[chosen].cumsum(0) - sizes[chosen] - starts[chosen]
    return Graphs(
        nodes=x.nodes[_spans(starts[chosen], sizes[chosen])],
        edges=x.edges[:, edges] + shift.repeat_interleave(edge_sizes[chosen]),
        owner=torch.arange(len(chosen), device=sizes.device).repeat_interleave(sizes[chosen]),
        count=len(chosen),
        weights=None if x.weights is None else x.weights[edges],
    )


@to.register
def _(x: Graphs, device: torch.device | str) -> Graphs:
    weights = None if x.weights is None else _moved(x.weights, device)
    return Graphs(_moved(x.nodes, device), _moved(x.edges, device), _moved(x.owner, device), x.count, weights)


@_cat.register
def _(first: Graphs, rest: Sequence[Graphs]) -> Graphs:
    parts = [first, *rest]
    first_node = accumulate((len(p.nodes) for p in parts), initial=0)
    first_graph = accumulate((p.count for p in parts), initial=0)
    weights = [p.weights for p in parts if p.weights is not None]
    return Graphs(
        nodes=torch.cat([p.nodes for p in parts]),
        edges=torch.cat([p.edges + at for p, at in zip(parts, first_node, strict=False)], dim=1),
        owner=torch.cat([p.owner + at for p, at in zip(parts, first_graph, strict=False)]),
        count=sum(p.count for p in parts),
        weights=torch.cat(weights) if weights else None,
    )


def top_fraction(scores: Tensor, owner: Tensor, count: int, ratio: float) -> Tensor:
    """(k,) the nodes or edges with the best scores, this share of each graph's, rounded up, graph after graph."""
    order = scores.argsort(descending=True, stable=True)
    order = order[owner[order].argsort(stable=True)]
    sizes = owner.bincount(minlength=count)
    place = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[owner[order]]
    return order[place < (sizes * ratio).ceil()[owner[order]]]


def select_nodes(x: Graphs, kept: Tensor) -> Graphs:
    """The graphs with these nodes (v,) alone and the edges between them."""
    place = torch.cumsum(kept, 0) - 1
    stays = kept[x.edges[0]] & kept[x.edges[1]]
    return Graphs(
        nodes=x.nodes[kept],
        edges=place[x.edges[:, stays]],
        owner=x.owner[kept],
        count=x.count,
        weights=None if x.weights is None else x.weights[stays],
    )


class Sentence(NamedTuple):
    """Words, and for each the number of its tag; no tags where they are to be found."""

    words: list[str]
    tags: list[int] | None = None


class Question(NamedTuple):
    """A question about a text; each answer is a stretch of the text that begins at a character."""

    context: str
    question: str
    answers: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
