"""Predictions of a saved model on a GPU as CUDA graphs, for servers: one launch per batch instead of hundreds.

Batches are padded to a few shapes, each of which is captured when it comes again. The first replay of a graph is
compared with an eager pass; a pass that cannot be captured, or that differs, stays eager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from holdfast.accel.cuda_graphs import GRAPH_LOCK, can_capture, capture_key
from holdfast.core import inputs
from holdfast.core.inputs import Inputs, Tokens
from holdfast.methods.captured import CudaRecorder, Recorder

WARMUP_PASSES = 2  # eager passes of a shape before it is captured
MAX_SHAPES = 24
MAX_ROWS = 256  # of a batch that is captured: larger ones keep a GPU busy anyway
TOKENS = 32  # multiple of the length of texts
TOLERANCE = 0.02  # of a replay, relative to the largest output: bfloat16 rounds sums of another order differently


@dataclass
class _Graph:
    """A captured pass, the memory it reads its batch from and the memory it writes its result to."""

    batch: Inputs
    result: Tensor
    replay: Callable[[], None]


class CapturedPrediction:
    """A function of a batch, with the weights of a module, that is replayed for shapes that repeat."""

    def __init__(
        self, function: Callable[[Any], Tensor], module: nn.Module, *,
        make_recorder: Callable[[torch.device], Recorder] = CudaRecorder,
        possible: Callable[[Tensor], bool] = can_capture,
    ) -> None:  # fmt: skip
        self.function, self.module = function, module
        self.make_recorder, self.possible = make_recorder, possible
        self.recorder: Recorder | None = None
        self.addresses: Hashable = None
        self.graphs: dict[Hashable, _Graph] = {}
        self.seen = Counter[Hashable]()
        self.failed = False
        self.replays = 0

    def __call__(self, x: Inputs) -> Tensor:
        if self.failed or not isinstance(x, Tensor | Tokens) or not 0 < len(x) <= MAX_ROWS:
            return self.function(x)
        first = x if isinstance(x, Tensor) else x.ids
        if not self.possible(first):
            return self.function(x)
        padded = self._padded(x)
        tensors = _tensors(padded)
        key = (type(x), tuple((t.shape, t.dtype) for t in tensors), capture_key(first))
        with GRAPH_LOCK:
            self._forget_if_moved()
            if key in self.graphs:
                return self._replayed(self.graphs[key], padded)[: len(first)]
            self.seen[key] += 1
            expected = self.function(padded)
            if self.seen[key] > WARMUP_PASSES and len(self.graphs) < MAX_SHAPES:
                self._capture(key, padded, expected)
        return expected[: len(first)]

    def _padded(self, x: Tensor | Tokens) -> Tensor | Tokens:
        """Return a batch with a power of two of rows, the last of which is repeated, and a multiple of tokens."""
        count = 1 << (len(x) - 1).bit_length()
        rows = torch.arange(count).clamp(max=len(x) - 1).to(x.device if isinstance(x, Tensor) else x.ids.device)
        if isinstance(x, Tensor):
            return x[rows] if count > len(x) else x
        more = -x.ids.shape[1] % TOKENS
        wide = replace(
            x,
            ids=pad(x.ids, (0, more)),  # which the mask excludes
            mask=pad(x.mask, (0, more), value=False),
            types=None if x.types is None else pad(x.types, (0, more)),
        )
        return wide.take(rows) if count > len(x) else wide

    def _forget_if_moved(self) -> None:
        """Drop the graphs if the weights are elsewhere, since a graph reads the memory it was captured with."""
        addresses = tuple(parameter.data_ptr() for parameter in self.module.parameters())
        if addresses != self.addresses:
            self.graphs.clear()
            self.seen.clear()
            self.addresses = addresses

    def _capture(self, key: Hashable, batch: Tensor | Tokens, expected: Tensor) -> None:
        recorder = self.recorder or self.make_recorder(expected.device)
        copied = inputs.map_tensors(lambda t: t.clone(), batch)
        try:
            result, replay = recorder.record(lambda: self.function(copied))
            graph = _Graph(copied, result, replay)
            replayed = self._replayed(graph, batch)
        except (RuntimeError, torch.OutOfMemoryError):  # such as a pass in which the CPU waits for the GPU
            self.failed = True
            return
        limit = TOLERANCE * float(expected.nan_to_num().abs().max())
        self.failed = not torch.allclose(replayed, expected, rtol=0.0, atol=limit, equal_nan=True)
        if not self.failed:
            self.recorder, self.graphs[key] = recorder, graph

    def _replayed(self, graph: _Graph, batch: Tensor | Tokens) -> Tensor:
        for to, value in zip(_tensors(graph.batch), _tensors(batch), strict=True):
            to.copy_(value, non_blocking=True)
        graph.replay()
        self.replays += 1
        return graph.result.clone()


def _tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    return [t for t in (x.ids, x.mask, x.types, x.at) if t is not None]
