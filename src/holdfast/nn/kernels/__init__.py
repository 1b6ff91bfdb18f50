"""Kernels for a GPU, written in Triton, which comes with torch there; without it the callers go a plain way."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def kernels(name: str, tensor: Tensor) -> Any:
    """The module of that name where this tensor can go through its kernels, else None."""
    return usable(name, tensor.device, tensor.dtype) if tensor.is_cuda else None


@functools.cache
def usable(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """The same for all tensors of a type on a GPU."""
    module = _module(name) if _work(device) else None
    return module if module is not None and dtype in module.TYPES else None


@functools.cache
def _module(name: str) -> Any:
    return importlib.import_module(f"holdfast.nn.kernels.{name}")


@functools.cache
def _work(device: torch.device) -> bool:
    """Whether a kernel can be built and run: that also takes a C compiler, which a small container may lack."""
    if importlib.util.find_spec("triton") is None:
        return False
    one = torch.ones(1, 16, device=device)
    try:
        _module("rows").gather(one, torch.zeros(1, 1, dtype=torch.long, device=device), one[:, :1])
    except Exception as error:
        warnings.warn(f"Triton does not work here, so large memories and experts are slower: {error}", stacklevel=2)
        return False
    return True


def kernel(function: Callable[..., Any]) -> Any:
    """triton.jit, imported only where kernels are."""
    import triton  # pyright: ignore[reportMissingImports]

    return triton.jit(function)


def through_plain(
    plain: Callable[..., Any], inputs: Sequence[Any], learns: Sequence[bool], grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Gradients of `plain` at what a kernel was given, which can be differentiated once more.

    One input may come of another, so each gets a name of its own here: a gradient goes no further back than that.
    """
    with torch.enable_grad():
        own = [each.view_as(each) if learned else each for each, learned in zip(inputs, learns, strict=True)]
        outputs = plain(*own)
    pairs = zip(outputs if isinstance(outputs, tuple) else (outputs,), grads, strict=True)
    asked, by_asked = zip(*((out, grad) for out, grad in pairs if grad is not None), strict=True)
    wanted = [each for each, learned in zip(own, learns, strict=True) if learned]
    found = iter(torch.autograd.grad(asked, wanted, by_asked, create_graph=True, allow_unused=True))
    return tuple(next(found) if learned else None for learned in learns)
