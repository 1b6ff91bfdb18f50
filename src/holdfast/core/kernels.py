"""Triton kernels for GPUs: availability, launch, and helpers that all kernel modules share.

Triton comes with the CUDA builds of torch. Where it is missing or cannot compile, callers use plain torch operations.
Each module replaces these operations, and shortens a captured step of a complete network (`holdfast bench kernels`):

- `norm`: layer norm, batch norm and sums of bias gradients; ViT-S/16 1.36, ResNet-50 1.34, MiniLM 1.18
- `attention`: attention among at most 128 tokens; MiniLM 1.19
- `experts`, `routing`: the expert layer; GMoE 1.06 with the best expert, 1.07 with two
- `memory`: the choice and the sum of slots of product keys; MiniLM 8.2, because a step without it is not captured
- `recurrent`: the gates of LSTM and GRU, and products of few rows; word LSTM with a bank 1.05
- `holdfast.data.augment_kernels`: the augmentation `domainbed`; ResNet-50 1.12, ViT-S/16 1.16
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

NETWORKS = "holdfast.nn.kernels"  # package of the modules that are named without one


def kernels(name: str, tensor: Tensor) -> Any:
    """Return the kernel module `name` if it supports the tensor's device and dtype, else None."""
    return usable(name, tensor.device, tensor.dtype) if tensor.is_cuda else None


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
    module = _module(name) if _compiles(device) else None
    return module if module is not None and dtype in module.DTYPES else None


@functools.cache
def _module(name: str) -> Any:
    return importlib.import_module(name if "." in name else f"{NETWORKS}.{name}")


@functools.cache
def _compiles(device: torch.device) -> bool:
    """Compile and run one kernel, which also needs a C compiler; small containers may lack it."""
    if importlib.util.find_spec("triton") is None:
        return False
    one = torch.ones(1, 16, device=device)
    try:
        _module("memory").gather(one, torch.zeros(1, 1, dtype=torch.long, device=device), one[:, :1])
    except Exception as error:
        warnings.warn(f"Triton does not work here; large memories and experts run slower: {error}", stacklevel=2)
        return False
    return True


def constant(function: Callable[..., Any]) -> Any:
    """Let torch.compile evaluate calls of this function while it traces.

    Equal to `torch.compiler.assume_constant_result`, which imports the compiler and so takes more than a second.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


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
