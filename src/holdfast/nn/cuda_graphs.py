"""A function with its own way back as recorded graphs on a GPU: hundreds of small kernels, asked for by one call.

One pair of graphs, there and back, for each shape of what is given; a shape that comes again is replayed.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.backends.cuda import matmul

Made = Sequence[Any]  # tensors and, where there is none, None
KEPT = 16  # shapes; each holds what its way back needs, some hundred megabytes for large banks
ALIKE = 2  # passes of a layer before one is recorded: a length that comes once is not worth it
OFTEN = 16  # the same of predictions, which may soon be over
TURNS = 2**40  # more than there ever are of one recording
# whoever records or replays holds it until the results are copied: recordings share memory among threads, and a GPU
# takes one recording at a time
GRAPH_LOCK = threading.RLock()


class Way(NamedTuple):
    """A recorded pass: the memory that it reads, the memory that it leaves its results in, and the recording."""

    inputs: list[Tensor]
    outputs: tuple[Any, ...]
    graph: torch.cuda.CUDAGraph

    def replay(self, given: Sequence[Tensor]) -> tuple[Any, ...]:
        torch._foreach_copy_(self.inputs, [each.detach() for each in given])
        self.graph.replay()
        return self.outputs


class CapturedPasses:
    """There and back at one shape. `turn` counts the passes there: each overwrites what the one before left.

    The graphs of one shape share a pool of memory and no others do: what a graph needs only while it runs may lie where
    one that was recorded later leaves its results, which is harmless only while they are replayed in that order.
    """

    def __init__(self, there: Callable[..., Made], given: Sequence[Tensor], reads: Hashable = None) -> None:
        self.reads = reads  # where that lies which is not given: a recording goes there whatever became of it
        self.room = _room(given[0].device)
        self.captured = record(there, given, self.room)
        self.back: dict[Hashable, Way] = {}
        self.replays = 0
        self._number = next(_numbers)
        self._user: Callable[[], Tensor | None] = lambda: None
        _all[self._number] = self

    def forward(self, given: Sequence[Tensor]) -> tuple[Any, ...]:
        """What the pass leaves, in memory that the next one overwrites."""
        self.replays += 1
        return self.captured.replay(given)

    def backward(self, key: Hashable, back: Callable[..., Made], grads: Sequence[Tensor]) -> tuple[Any, ...]:
        """What the way back gives for gradients, in such memory too; it follows the last pass there."""
        if key not in self.back:
            try:
                self.back[key] = record(back, grads, self.room)
            except torch.OutOfMemoryError:  # there may be enough without holding it
                return tuple(back(*grads))
        return self.back[key].replay(grads)

    def use(self) -> Tensor:
        """Whoever holds this needs what the last pass left; saved for the way back, it is let go when others are."""
        user = torch.full((), self._number * TURNS + self.replays, device="cpu")
        self._user = weakref.ref(user)
        return user

    @staticmethod
    def of(user: Tensor) -> tuple[CapturedPasses | None, bool]:
        """Whose last pass someone needs, if they are still there, and whether it is still the last."""
        number, replays = divmod(int(user), TURNS)
        passes = _all.get(number)
        return passes, passes is not None and passes.replays == replays

    @property
    def in_use(self) -> bool:
        return self._user() is not None


def no_token() -> Tensor:
    """What a user would hold, of a pass that was not recorded."""
    return torch.full((), -1, device="cpu")


_numbers = itertools.count()
_all = weakref.WeakValueDictionary[int, CapturedPasses]()


class GraphCache:
    """The shapes used last."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept, self.passes = kept, OrderedDict[Hashable, CapturedPasses]()

    def find(self, key: Hashable, make: Callable[[], CapturedPasses]) -> CapturedPasses:
        if key not in self.passes:
            self.passes[key] = make()
            if len(self.passes) > self.kept:
                self.passes.popitem(last=False)
        self.passes.move_to_end(key)
        return self.passes[key]


class Repeated:
    """What a layer does again and again, recorded once it has done it a few times."""

    def __init__(self, alike: int = ALIKE) -> None:
        self.alike = alike
        self.key: Hashable = None
        self.times: float = 0
        self.passes: CapturedPasses | None = None

    def find(self, key: Hashable, make: Callable[[], CapturedPasses]) -> CapturedPasses | None:
        """None for the first passes of a kind, and while what the last one left is still needed."""
        if key != self.key:
            self.key, self.times, self.passes = key, 0, None
        self.times += 1
        if self.times <= self.alike:
            return None
        passes = self.passes
        if passes is None:
            try:
                passes = self.passes = make()
            except torch.OutOfMemoryError:  # it went without a recording so far
                self.times = -math.inf
                return None
        return None if passes.in_use else passes


def copy_out(left: Sequence[Tensor | None], like: Sequence[Tensor | None] | None = None) -> list[Any]:
    """What a pass left, in memory that no pass overwrites, and in the types of `like`."""
    made: list[Any] = []
    copies = defaultdict[Any, list[tuple[Tensor, Tensor]]](list)  # by types: at once only those alike are copied
    for each, other in zip(left, left if like is None else like, strict=True):
        made.append(None if each is None or other is None else torch.empty_like(each, dtype=other.dtype))
        if each is not None and other is not None:
            copies[each.dtype, other.dtype].append((made[-1], each))
    for pairs in copies.values():
        torch._foreach_copy_([to for to, _ in pairs], [each for _, each in pairs])
    return made


def capture_key(tensor: Tensor) -> tuple[Hashable, ...]:
    """What a recording is for, besides shapes: a device, a stream, in whose order it is replayed, and its precision."""
    stream = torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0
    return tensor.device, stream, products()


def products() -> str:
    """How exactly fp32 products are taken: a recording keeps to what was asked for at its time."""
    return getattr(matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()


def can_capture(tensor: Tensor) -> bool:
    """Not while someone else records, or counts what is done: a replay shows none of it."""
    watched = torch._C._len_torch_dispatch_stack() > 0
    return tensor.is_cuda and not watched and not torch.cuda.is_current_stream_capturing()


@torch.no_grad()
def record(function: Callable[..., Made], given: Sequence[Tensor], room: Any) -> Way:
    """Run once for libraries to set themselves up, which cannot be recorded, and once more for the record."""
    inputs = [each.detach().clone() for each in given]
    device = inputs[0].device
    side, now = _aside(device), torch.cuda.current_stream(device)
    side.wait_stream(now)
    with torch.cuda.stream(side):
        function(*inputs)
    now.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.device(device),
        torch.cuda.graph(graph, pool=room, stream=_recording(device), capture_error_mode="thread_local"),
    ):
        outputs = function(*inputs)
    return Way(inputs, tuple(outputs), graph)


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """One stream for all first runs: what is freed on a stream can only be used again on it."""
    return torch.cuda.Stream(device)


@cache
def _recording(device: torch.device) -> torch.cuda.Stream:
    """Torch has one such stream for all devices, and work on another device than its own would not be recorded."""
    return torch.cuda.Stream(device)


def _room(device: torch.device) -> Any:
    with torch.cuda.device(device):
        return torch.cuda.graph_pool_handle()
