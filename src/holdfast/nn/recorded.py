"""A function with its own way back as recorded graphs on a GPU: hundreds of small kernels, asked for by one call.

One pair of graphs, there and back, for each shape of what is given; a shape that comes again is replayed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

Made = Sequence[Any]  # tensors and, where there is none, None
KEPT = 16  # shapes; each holds what its way back needs, some hundred megabytes for large banks


class Way(NamedTuple):
    """A recorded pass: the memory that it reads, the memory that it leaves its results in, and the recording."""

    takes: list[Tensor]
    leaves: tuple[Any, ...]
    graph: torch.cuda.CUDAGraph

    def replay(self, given: Sequence[Tensor]) -> tuple[Any, ...]:
        torch._foreach_copy_(self.takes, [each.detach() for each in given])
        self.graph.replay()
        return self.leaves


class Passes:
    """There and back at one shape. `turn` counts the passes there: each overwrites what the one before left."""

    def __init__(self, there: Callable[..., Made], given: Sequence[Tensor]) -> None:
        self.way = record(there, given)
        self.back: dict[Hashable, Way] = {}
        self.turn = 0

    def forward(self, given: Sequence[Tensor]) -> tuple[Any, ...]:
        """What the pass leaves, in memory that the next one overwrites."""
        self.turn += 1
        return self.way.replay(given)

    def backward(self, key: Hashable, back: Callable[..., Made], grad: Tensor) -> list[Tensor | None]:
        """What the way back gives for a gradient, in memory of its own; it follows the last pass there."""
        if key not in self.back:
            self.back[key] = record(back, (grad,))
        return [None if each is None else each.clone() for each in self.back[key].replay((grad,))]


class Shelf:
    """The shapes used last."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept, self.passes = kept, OrderedDict[Hashable, Passes]()

    def find(self, key: Hashable, make: Callable[[], Passes]) -> Passes:
        if key not in self.passes:
            self.passes[key] = make()
            if len(self.passes) > self.kept:
                self.passes.popitem(last=False)
        self.passes.move_to_end(key)
        return self.passes[key]


def can_record(tensor: Tensor) -> bool:
    return tensor.is_cuda and not torch.cuda.is_current_stream_capturing()


@torch.no_grad()
def record(function: Callable[..., Made], given: Sequence[Tensor]) -> Way:
    """Run once for libraries to set themselves up, which cannot be recorded, and once more for the record."""
    takes = [each.detach().clone() for each in given]
    device = takes[0].device
    side, now = _aside(device), torch.cuda.current_stream(device)
    side.wait_stream(now)
    with torch.cuda.stream(side):
        function(*takes)
    now.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_room(device)):
        leaves = function(*takes)
    return Way(takes, tuple(leaves), graph)


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """One stream for all first runs: what is freed on a stream can only be used again on it."""
    return torch.cuda.Stream(device)


@cache
def _room(device: torch.device) -> Any:
    """One pool for all recordings: they are replayed one after the other, so what a pass needs only while it runs is
    shared; what it leaves is held by its `Way`, and no other pass is given that memory."""
    with torch.cuda.device(device):
        return torch.cuda.graph_pool_handle()
