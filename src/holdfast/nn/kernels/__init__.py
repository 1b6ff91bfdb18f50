"""Kernels for a GPU, written in Triton, which comes with torch there; without it the callers go a plain way."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def kernels(name: str, tensor: Tensor) -> Any:
    """The module of that name where this tensor can go through its kernels, else None."""
    module = _module(name) if tensor.is_cuda and _work(tensor.device) else None
    return module if module is not None and tensor.dtype in module.TYPES else None


def kernels_unless_compiled(name: str, tensor: Tensor) -> Any:
    """The same for what a compiler fuses itself when it is shown the plain way."""
    return None if torch.compiler.is_compiling() or not tensor.numel() else kernels(name, tensor)


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


def on_its_device(function: Callable[P, R]) -> Callable[P, R]:
    """A kernel runs on the device that is current, so make it the first tensor's."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **named: P.kwargs) -> R:
        with torch.cuda.device_of(args[0]):
            return function(*args, **named)

    return wrapped


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
