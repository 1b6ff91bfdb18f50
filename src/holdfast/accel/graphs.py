"""CUDA graphs: record work of a GPU once and replay it in one launch in place of hundreds.

Training steps (`methods.captured`), predictions (`captured_prediction`) and the time loop (`recurrent_loop`) use the
same recorder, and the same table of what is recorded when.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.backends.cuda import matmul

from holdfast.core.inputs import Tokens

G = TypeVar("G")
Tensors = Sequence[Tensor | None]
WARM_UP = 2  # eager passes before a graph: work that comes once is not worth one, and libraries initialise in them
MAX_GRAPHS = 16  # per table; each holds what its backward pass needs, some hundred megabytes for large banks
SYNCHRONISING = "synchronizing CUDA operation"  # in the warning of torch
HARMLESS = ("masking_utils.py",)  # of transformers: omits its look at the mask while a graph is captured
# held while graphs are captured or replayed, until the results are copied: threads share the memory of the graphs, and
# a GPU captures one graph at a time
GRAPH_LOCK = threading.RLock()


class Graph(NamedTuple):
    """A CUDA graph, the memory it reads its inputs from and the memory it writes its result to."""

    inputs: Tensors
    result: Any
    launch: Callable[[], None]

    def replay(self, inputs: Tensors) -> Any:
        """Copy the inputs, replay the graph and return its result, which the next replay overwrites."""
        pairs = [
            (to, x.detach()) for to, x in zip(self.inputs, inputs, strict=True) if to is not None and x is not None
        ]
        torch._foreach_copy_([to for to, _ in pairs], [x for _, x in pairs], non_blocking=True)
        self.launch()
        return self.result


class GraphTable(Generic[G]):
    """Captured graphs by a key of all that they depend on besides values; those used last are kept."""

    def __init__(self) -> None:
        self.graphs = OrderedDict[Hashable, G]()
        self.seen = Counter[Hashable]()

    def find(self, key: Hashable) -> G | None:
        """Count a pass with this key and return its graph, if there is one."""
        self.seen[key] += 1
        if key in self.graphs:
            self.graphs.move_to_end(key)
        return self.graphs.get(key)

    def is_due(self, key: Hashable) -> bool:
        """Whether a pass that `find` has counted should be recorded."""
        return self.seen[key] > WARM_UP

    def keep(self, key: Hashable, graph: G) -> None:
        """Store the graph of a key in place of the one that was used least recently."""
        self.graphs[key] = graph
        if len(self.graphs) > MAX_GRAPHS:
            oldest, _ = self.graphs.popitem(last=False)
            del self.seen[oldest]

    def clear(self) -> None:
        self.graphs.clear()
        self.seen.clear()


class Recorder(Protocol):
    """Runs and records work of a device; tests replace it on a CPU."""

    def warm_up(self, function: Callable[[], Any]) -> Any: ...
    def synchronisations(self) -> AbstractContextManager[list[str]]: ...
    def record(self, function: Callable[[], Any], inputs: Tensors) -> Graph: ...


class CudaRecorder:
    """Records work of a GPU.

    The graphs of one recorder share a memory pool: temporary memory of one may be reused for the result of another.
    That is harmless if results are copied at once, or if the graphs are replayed in the order of their recording.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.pool: Any = torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Run a function on a stream of its own, as capturing needs."""
        side, current = _side_stream(self.device, "warm-up"), torch.cuda.current_stream(self.device)
        # both streams wait for each other, so that the work keeps its order
        side.wait_stream(current)
        with torch.cuda.stream(side):
            result = function()
        current.wait_stream(side)
        return result

    @contextmanager
    def synchronisations(self) -> Iterator[list[str]]:
        """Collect the locations in the code where the CPU waits for the GPU, which cannot be captured."""
        locations: list[str] = []
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            caught.clear()  # torch warns that this mode is a prototype
            try:
                yield locations
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        for each in caught:
            # torch reports a synchronisation by a warning; all other warnings are passed on to the user
            if SYNCHRONISING in str(each.message):
                if (name := Path(each.filename).name) not in HARMLESS:
                    locations.append(f"{name}, line {each.lineno}")
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)

    def record(self, function: Callable[[], Any], inputs: Tensors) -> Graph:
        """Capture a function that reads these tensors, without running it."""
        graph = torch.cuda.CUDAGraph()
        stream = _side_stream(self.device, "capture")
        try:
            with (
                GRAPH_LOCK,
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"),
            ):
                result = function()
        except (RuntimeError, torch.OutOfMemoryError):
            # torch leaves the generator of the device in a capture, and every later random draw would fail
            index = torch.cuda.current_device() if self.device.index is None else self.device.index
            fresh = torch.Generator(self.device).graphsafe_get_state()
            torch.cuda.default_generators[index].graphsafe_set_state(fresh)
            raise
        return Graph(inputs, result, graph.replay)


@cache
def _side_stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """Return one stream per device, on which torch's default may not be, and purpose: freed memory stays on it."""
    return torch.cuda.Stream(device)


def tensors_of(x: Any) -> list[Tensor | None]:
    """Return the tensors of examples; none for pairs, and for graphs of nodes, whose shapes do not repeat."""
    if isinstance(x, Tensor):
        return [x]
    return [x.ids, x.mask, x.types, x.at] if isinstance(x, Tokens) else []


def copies(tensors: Tensors) -> list[Any]:
    """Return copies without gradient, for a graph to read from."""
    return [None if x is None else x.detach().clone() for x in tensors]


def shapes_of(tensors: Tensors) -> Hashable:
    """Return what a graph depends on besides the values of its inputs."""
    return tuple(None if x is None else (x.shape, x.dtype) for x in tensors)


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
