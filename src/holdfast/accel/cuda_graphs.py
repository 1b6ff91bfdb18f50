"""Capture a function and its backward pass as CUDA graphs and replay them: one launch in place of hundreds.

One pair of graphs, forward and backward, per shape of the inputs. A shape that comes again is replayed.
"""

from __future__ import annotations

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

Outputs = Sequence[Any]  # tensors, None, and tuples of them
MAX_SHAPES = 16  # each holds what its backward pass needs, some hundred megabytes for large banks
WARMUP_PASSES = 2  # passes of a layer before one is captured: a length that comes once is not worth it
WARMUP_PREDICTIONS = 16  # passes without gradient before one is captured: prediction may soon be over
# held while graphs are captured or replayed, until the results are copied: threads share the memory of the graphs, and
# a GPU captures one graph at a time
GRAPH_LOCK = threading.RLock()


class CapturedPass(NamedTuple):
    """A CUDA graph, the memory it reads its inputs from and the memory it writes its outputs to."""

    inputs: list[Tensor]
    outputs: tuple[Any, ...]
    graph: torch.cuda.CUDAGraph

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
        """Copy the inputs, replay the graph and return its outputs, which the next replay overwrites."""
        torch._foreach_copy_(self.inputs, [each.detach() for each in inputs])
        self.graph.replay()
        return self.outputs


class CapturedPasses:
    """Captured forward and backward passes of one shape. `replays` counts the forward passes.

    The graphs of one shape share a memory pool, and no others do: the temporary memory of a graph may be reused for the
    outputs of a graph captured later, which is harmless only while they are replayed in that order.
    """

    def __init__(self, forward: Callable[..., Outputs], inputs: Sequence[Tensor], addresses: Hashable = None) -> None:
        self.addresses = addresses  # of tensors the graph reads that are no inputs; it reads there whatever happens
        self.pool = memory_pool(inputs[0].device)
        self.captured = capture(forward, inputs, self.pool)
        self.captured_backward: dict[Hashable, CapturedPass] = {}
        self.replays = 0
        self._token: Callable[[], Tensor | None] = lambda: None

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
        """Replay the forward pass and return its outputs, which the next replay overwrites."""
        self.replays += 1
        return self.captured.replay(inputs)

    def backward(self, key: Hashable, function: Callable[..., Outputs], grads: Sequence[Tensor]) -> tuple[Any, ...]:
        """Replay the backward pass of the last forward pass; `function` is captured on the first call with `key`."""
        if key not in self.captured_backward:
            try:
                self.captured_backward[key] = capture(function, grads, self.pool)
            except torch.OutOfMemoryError:  # running it without a graph may need less memory
                return tuple(function(*grads))
        return self.captured_backward[key].replay(grads)

    def token(self) -> Tensor:
        """Return a tensor that marks the last forward pass as in use for as long as the tensor exists.

        Saved for the backward pass, it is freed together with the other saved tensors.
        """
        token = torch.empty((), device="cpu")
        self._token = weakref.ref(token)
        return token

    @property
    def in_use(self) -> bool:
        return self._token() is not None


class GraphCache:
    """The captured passes of the shapes used last."""

    def __init__(self, size: int = MAX_SHAPES) -> None:
        self.size, self.passes = size, OrderedDict[Hashable, CapturedPasses]()

    def find(self, key: Hashable, make: Callable[[], CapturedPasses]) -> CapturedPasses:
        if key not in self.passes:
            self.passes[key] = make()
            if len(self.passes) > self.size:
                self.passes.popitem(last=False)
        self.passes.move_to_end(key)
        return self.passes[key]


class RepeatedPass:
    """Captures a pass of a layer after it was repeated `warmup` times with the same key."""

    def __init__(self, warmup: int = WARMUP_PASSES) -> None:
        self.warmup = warmup
        self.key: Hashable = None
        self.times: float = 0
        self.passes: CapturedPasses | None = None

    def find(self, key: Hashable, make: Callable[[], CapturedPasses]) -> CapturedPasses | None:
        """Return the captured passes; None during warm-up, and while the outputs of the last pass are still in use."""
        if key != self.key:
            self.key, self.times, self.passes = key, 0, None
        self.times += 1
        if self.times <= self.warmup:
            return None
        passes = self.passes
        if passes is None:
            try:
                passes = self.passes = make()
            except torch.OutOfMemoryError:  # so far it ran without a graph
                self.times = -math.inf
                return None
        return None if passes.in_use else passes


def copy_out(outputs: Sequence[Tensor | None], like: Sequence[Tensor | None] | None = None) -> list[Any]:
    """Copy the outputs of a graph to memory that no replay overwrites, in the dtypes of `like`."""
    results: list[Any] = []
    copies = defaultdict[Any, list[tuple[Tensor, Tensor]]](list)  # one batched copy takes tensors of equal dtypes only
    for output, other in zip(outputs, outputs if like is None else like, strict=True):
        results.append(None if output is None or other is None else torch.empty_like(output, dtype=other.dtype))
        if output is not None and other is not None:
            copies[output.dtype, other.dtype].append((results[-1], output))
    for pairs in copies.values():
        torch._foreach_copy_([result for result, _ in pairs], [output for _, output in pairs])
    return results


def capture_key(tensor: Tensor) -> tuple[Hashable, ...]:
    """Return what a graph depends on besides shapes: device, stream, whose order replays follow, and precision."""
    stream = torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0
    return tensor.device, stream, matmul_precision()


def matmul_precision() -> str:
    """Return the precision of fp32 products, which a graph keeps from its capture."""
    return getattr(matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()


def can_capture(tensor: Tensor) -> bool:
    """Whether work on this tensor can be captured: not during another capture or under a dispatch mode.

    A dispatch mode, such as a FLOP counter, would see nothing of a replay. Without the private function that reports
    dispatch modes nothing is captured.
    """
    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    if modes is None or not tensor.is_cuda or modes() > 0:
        return False
    return not torch.cuda.is_current_stream_capturing()


@torch.no_grad()
def capture(function: Callable[..., Outputs], inputs: Sequence[Tensor], pool: Any) -> CapturedPass:
    """Run the function once so that libraries initialise, which cannot be captured, then capture a second run."""
    copies = [each.detach().clone() for each in inputs]
    device = copies[0].device
    side, current = side_stream(device, "warm-up"), torch.cuda.current_stream(device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        function(*copies)
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.device(device),
        torch.cuda.graph(graph, pool=pool, stream=side_stream(device, "capture"), capture_error_mode="thread_local"),
    ):
        outputs = function(*copies)
    return CapturedPass(copies, tuple(outputs), graph)


@cache
def side_stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """Return one stream per device, on which torch's default may not be, and purpose: freed memory stays on it."""
    return torch.cuda.Stream(device)


def memory_pool(device: torch.device) -> Any:
    """Return a new memory pool for graphs."""
    with torch.cuda.device(device):
        return torch.cuda.graph_pool_handle()
