"""Cast the weights of a network to bfloat16 once per pass, all in one launch, instead of one launch per weight.

Under autocast every linear layer and convolution casts its own weight and bias, and the backward pass casts every
gradient: 24 of the 60 kernels of a transformer block. Values are those of autocast, and so are the gradients of layers
that do not share their input with another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)  # of exactly these types: a subclass may compute something else
FORWARD = "forward"  # attribute of an instance that takes the place of its class's method


@contextmanager
def weights_cast_once(network: nn.Module, dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """Let linear layers and convolutions use copies of their weights inside, which are made together.

    Where a part of the network switches autocast off, and where it reads a weight itself, it gets the weight. A network
    with compiled parts casts as before: every change of a layer would compile it again.
    """
    layers: list[Any] = [layer for layer in network.modules() if _casts_weights(layer)]
    if torch.compiler.is_compiling() or not layers or any(m._compiled_call_impl for m in network.modules()):
        yield
        return
    weights = list(dict.fromkeys(p for layer in layers for p in (layer.weight, layer.bias) if p is not None))
    copies, inputs = dict(zip(weights, cast_together(weights, dtype), strict=True)), _Inputs(dtype)
    for layer in layers:
        layer.__dict__[FORWARD] = _forward(layer, copies[layer.weight], copies.get(layer.bias), inputs)
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop(FORWARD, None)


def _casts_weights(layer: nn.Module) -> bool:
    return type(layer) in LAYERS and FORWARD not in layer.__dict__ and layer.weight.dtype == torch.float32


class _Inputs:
    """Casts the input of a layer, once if the next layers read the same tensor, as queries, keys and values do.

    The gradients of such layers are then added in the lower precision.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.last: tuple[Tensor, int, Tensor] | None = None  # a tensor, its version and its copy

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return x
        if self.last is None or self.last[0] is not x or self.last[1] != x._version:
            self.last = x, x._version, x.to(self.dtype)
        return self.last[2]


def _forward(layer: Any, weight: Tensor, bias: Tensor | None, inputs: _Inputs) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of a layer with these copies of its weights."""

    def forward(x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return type(layer).forward(layer, x)
        x = inputs(x)
        return F.linear(x, weight, bias) if isinstance(layer, nn.Linear) else layer._conv_forward(x, weight, bias)

    return forward


def cast_together(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return copies of another dtype; those of tensors that need a gradient pass it on, cast together too."""
    learns = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
    learned = [tensor for tensor, flag in zip(tensors, learns, strict=True) if flag]
    fixed = [tensor for tensor, flag in zip(tensors, learns, strict=True) if not flag]
    results = iter(_Cast.apply(dtype, *learned) if learned else ())  # pyright: ignore[reportArgumentType]
    constants = iter(_copies(fixed, dtype))
    return [next(results) if flag else next(constants) for flag in learns]


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, [tensor.detach() for tensor in tensors])
    return copies


class _Cast(torch.autograd.Function):
    """Cast tensors of one dtype to another; the backward pass is differentiable too."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = tensors[0].dtype
        ctx.set_materialize_grads(False)
        return tuple(_copies(tensors, dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        casts = iter(cast_together([grad for grad in grads if grad is not None], ctx.dtype))
        return None, *(None if grad is None else next(casts) for grad in grads)
