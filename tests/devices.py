"""Devices of kernels: a GPU, or a CPU in Triton's interpreter with TRITON_INTERPRET=1 and Triton installed."""

import importlib
import importlib.util
import os
from types import ModuleType

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
KERNEL_DEVICES = [GPU, *(["cpu"] if INTERPRETED else [])]


def interpret_kernels(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let functions of these modules call kernels for tensors on a CPU."""

    def kernels(name: str, tensor: torch.Tensor) -> ModuleType | None:
        module = importlib.import_module(f"holdfast.nn.kernels.{name}")
        return module if tensor.dtype in module.DTYPES else None

    for module in modules:
        monkeypatch.setattr(module, "kernels", kernels)
