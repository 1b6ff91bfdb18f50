"""Devices of kernels: a GPU, or a CPU in Triton's interpreter with TRITON_INTERPRET=1, Triton and numpy 2.3."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.accel.graphs import Graph, Tensors

# the interpreter of Triton converts arrays of one number to integers, which numpy 2.4 refuses
INTERPRETED = (
    os.environ.get("TRITON_INTERPRET") == "1"
    and importlib.util.find_spec("triton") is not None
    and tuple(map(int, np.__version__.split(".")[:2])) < (2, 4)
)
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
KERNEL_DEVICES = [GPU, *(["cpu"] if INTERPRETED else [])]


class CalledRecorder:
    """A recorder for a CPU: a replay calls the function again and writes its result over that of the first call."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.recorded = self.launched = 0

    def warm_up(self, function: Callable[[], Any]) -> Any:
        return function()

    def synchronisations(self) -> AbstractContextManager[list[str]]:
        return nullcontext([])

    def record(self, function: Callable[[], Any], inputs: Tensors) -> Graph:
        self.recorded, result = self.recorded + 1, function()

        @torch.no_grad()
        def launch() -> None:
            self.launched += 1
            for old, new in zip(_flat(result), _flat(function()), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        return Graph(inputs, result, launch)


def _flat(value: Any) -> Iterator[torch.Tensor]:
    """Return the tensors in nested sequences."""
    if isinstance(value, torch.Tensor):
        yield value
    for each in value if isinstance(value, list | tuple) else ():
        yield from _flat(each)
