"""Kernel modules of GPUs: which of them a tensor can use, and what they share.

Triton comes with the CUDA builds of torch. Where it is missing or cannot compile, callers use plain torch operations.
"""

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from holdfast.core.tape import ScopedValue


def on_gpu(tensor: Tensor) -> bool:
    """Whether kernels run on the device of a tensor; tests replace it, for Triton's interpreter."""
    return tensor.is_cuda


def kernels(name: str, tensor: Tensor) -> Any:
    """Return the kernel module `name` if it supports the tensor's device and dtype, else None."""
    return usable(name, tensor.device, tensor.dtype) if on_gpu(tensor) else None


_fused: ScopedValue[bool] = ScopedValue()


def fused_kernels() -> AbstractContextManager[None]:
    """Let layers use kernels that replace fast operations of torch inside: for steps that become a CUDA graph.

    A launch from Python takes several times as long as one from torch, which only a graph avoids.
    """
    return _fused.bind(True)


def fused(name: str, tensor: Tensor) -> Any:
    """Return the kernel module `name` inside `fused_kernels`, else None."""
    return kernels(name, tensor) if _fused.value else None


_left_out: ScopedValue[tuple[str, ...]] = ScopedValue()


def without_kernels(*names: str) -> AbstractContextManager[None]:
    """Let layers use plain torch instead of these kernel modules inside, to measure what the modules gain."""
    return _left_out.bind(names)


def usable(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the kernel module `name` if it supports tensors of this dtype on this GPU, else None."""
    return None if _left_out.value and name in _left_out.value else _supported(name, device, dtype)


@functools.cache
def _supported(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    return module(name) if _compiles(device) and dtype in module(name).DTYPES else None


@functools.cache
def module(name: str) -> Any:
    """Import a kernel module, and Triton with it."""
    return importlib.import_module(f"holdfast.accel.{name}_kernels")


@functools.cache
def _compiles(device: torch.device) -> bool:
    """Compile and run one kernel, which also needs a C compiler; small containers may lack it."""
    if importlib.util.find_spec("triton") is None:
        return False
    one = torch.ones(1, 16, device=device)
    try:
        module("memory").gather(one, torch.zeros(1, 1, dtype=torch.long, device=device), one[:, :1])
    except Exception as error:
        warnings.warn(f"Triton does not work here; large memories and experts run slower: {error}", stacklevel=2)
        return False
    return True


def kernel(function: Callable[..., Any]) -> Any:
    """Apply `triton.jit`; Triton is imported only together with a kernel module."""
    import triton  # pyright: ignore[reportMissingImports]

    return triton.jit(function)


def launch(function: Any, grid: tuple[int, ...], tensors: Sequence[Tensor], *numbers: float, **constants: Any) -> None:
    """Run `function[grid](*tensors, *numbers, **constants)` on the device of the first tensor."""
    device = -1 if torch.compiler.is_compiling() else tensors[0].get_device()  # the compiler captures kernels itself
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            function[grid](*tensors, *numbers, **constants)
    else:
        function[grid](*tensors, *numbers, **constants)


def ceil_div(length: int, size: int) -> int:
    """Return ceil(length / size), also for symbolic lengths."""
    return -(-length // size)


def power_of_two(least: int) -> int:
    """Return the smallest power of two that is at least `least`."""
    return 1 << max(0, least - 1).bit_length()
