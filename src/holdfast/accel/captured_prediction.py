"""Predictions of a saved model on a GPU as CUDA graphs, for servers: one launch per batch instead of hundreds.

Batches are padded to a few shapes, each of which is recorded when it comes again. The first replay of a graph is
compared with an eager pass; a pass that cannot be recorded, or that differs, stays eager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from holdfast.accel.graphs import (
    GRAPH_LOCK,
    CudaRecorder,
    Graph,
    GraphTable,
    Recorder,
    can_capture,
    capture_key,
    shapes_of,
    tensors_of,
)
from holdfast.core.inputs import Inputs, Tokens, map_tensors

MAX_ROWS = 256  # of a batch that is recorded: larger ones keep a GPU busy anyway
TOKENS = 32  # multiple of the length of texts
TOLERANCE = 0.02  # of a replay, relative to the largest output: bfloat16 rounds sums of another order differently


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
        self.graphs = GraphTable[Graph]()
        self.failed = False
        self.replays = 0

    def __call__(self, x: Inputs) -> Tensor:
        if self.failed or not isinstance(x, Tensor | Tokens) or not 0 < len(x) <= MAX_ROWS:
            return self.function(x)
        first = x if isinstance(x, Tensor) else x.ids
        if not self.possible(first):
            return self.function(x)
        padded = self._padded(x)
        tensors = tensors_of(padded)
        key = type(x), shapes_of(tensors), capture_key(first)
        with GRAPH_LOCK:
            self._forget_if_moved()
            graph = self.graphs.find(key)
            if graph is not None:
                return self._replayed(graph, tensors)[: len(first)]
            expected = self.function(padded)
            if self.graphs.is_due(key):
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
            self.addresses = addresses

    def _capture(self, key: Hashable, batch: Tensor | Tokens, expected: Tensor) -> None:
        recorder = self.recorder or self.make_recorder(expected.device)
        copied = map_tensors(lambda t: t.clone(), batch)
        try:
            graph = recorder.record(lambda: self.function(copied), tensors_of(copied))
            replayed = self._replayed(graph, tensors_of(batch))
        except (RuntimeError, torch.OutOfMemoryError):  # such as a pass in which the CPU waits for the GPU
            self.failed = True
            return
        limit = TOLERANCE * float(expected.nan_to_num().abs().max())
        self.failed = not torch.allclose(replayed, expected, rtol=0.0, atol=limit, equal_nan=True)
        if not self.failed:
            self.recorder = recorder
            self.graphs.keep(key, graph)

    def _replayed(self, graph: Graph, tensors: list[Tensor | None]) -> Tensor:
        self.replays += 1
        return graph.replay(tensors).clone()
