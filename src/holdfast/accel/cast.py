"""Cast the weights of a network to bfloat16 once per pass, all in one launch, instead of one launch per weight.

Under autocast every linear layer and convolution casts its own weight and bias, and the backward pass casts every
gradient: 24 of the 60 kernels of a transformer block. Values are those of autocast, and so are the gradients of layers
that do not share their input with another. In steps that are captured as CUDA graphs, layer norms also write the copy
that the next layer reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from holdfast.accel.registry import fused, kernels, on_gpu

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)  # of exactly these types: a subclass may compute something else
COLUMNS, MIN_ROWS = 64, 1024  # of a gradient whose sums a kernel takes: a multiple, and the least number
MAX_WIDTH = 2048  # of a layer norm, complete rows of which a kernel holds
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
    # a weight that several layers share is cast once, and its gradients are added in the copy
    weights = list(dict.fromkeys(p for layer in layers for p in (layer.weight, layer.bias) if p is not None))
    copies, inputs = dict(zip(weights, cast_together(weights, dtype), strict=True)), _Inputs(dtype)
    norms: list[Any] = [module for module in network.modules() if _is_norm(module)]
    # an attribute of the instance hides the method of its class; deleting it later restores the method
    for layer in layers:
        layer.__dict__[FORWARD] = _forward(layer, copies[layer.weight], copies.get(layer.bias), inputs)
    for norm in norms:
        norm.__dict__[FORWARD] = partial(_norm_forward, norm, inputs)
    try:
        yield
    finally:
        for layer in (*layers, *norms):
            layer.__dict__.pop(FORWARD, None)


def _casts_weights(layer: nn.Module) -> bool:
    return type(layer) in LAYERS and FORWARD not in layer.__dict__ and layer.weight.dtype == torch.float32


def _is_norm(module: nn.Module) -> bool:
    """Whether a kernel computes this layer norm."""
    if type(module) is not nn.LayerNorm or FORWARD in module.__dict__ or module.bias is None:
        return False
    # the kernel holds complete rows, and the final sums of its backward pass take 16 columns each
    (*others, width) = module.normalized_shape
    return on_gpu(module.weight) and not others and width % 16 == 0 and width <= MAX_WIDTH


def _norm_forward(norm: nn.LayerNorm, inputs: _Inputs, x: Tensor) -> Tensor:
    """Return the layer norm in fp32, as under autocast, and remember the copy of it that the next layer reads."""
    usual = not torch.is_autocast_enabled(x.device.type) or norm.weight.dtype != torch.float32 or not x.numel()
    if usual or fused("norm", x) is None:
        return nn.LayerNorm.forward(norm, x)
    out, narrow = _LayerNorm.apply(x, norm.weight, norm.bias, norm.eps, inputs.dtype)  # pyright: ignore
    # the next linear layer finds its input in fp32 here, with the copy that the kernel wrote in the same pass
    inputs.last = out, out._version, narrow
    return out


def _rows(x: Tensor) -> Tensor:
    """(m, c) contiguous rows."""
    return x.reshape(-1, x.shape[-1]).contiguous()


class _LayerNorm(torch.autograd.Function):
    """Layer norm in fp32 and in a lower precision."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        out, narrow, mean, inverse = kernels("norm", x).layer_norm(_rows(x), weight, bias, eps, dtype)
        ctx.save_for_backward(x, weight, mean, inverse)
        # usually only one of the two results has a gradient: no zeros for the other one
        ctx.set_materialize_grads(False)
        return out.view_as(x), narrow.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, mean, inverse = ctx.saved_tensors
        if all(grad is None for grad in grads):
            return None, None, None, None, None
        rows = [None if grad is None else _rows(grad) for grad in grads]
        by_x, by_weight, by_bias = kernels("norm", x).layer_norm_backward(*rows, _rows(x), weight, mean, inverse)
        return by_x.view_as(x), by_weight, by_bias, None, None


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
        # layers that share an input usually follow each other: one copy is enough; a change in place has a new version
        if self.last is None or self.last[0] is not x or self.last[1] != x._version:
            self.last = x, x._version, x.to(self.dtype)
        return self.last[2]


def _forward(layer: Any, weight: Tensor, bias: Tensor | None, inputs: _Inputs) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of a layer with these copies of its weights."""

    def forward(x: Tensor) -> Tensor:
        # a part that switches autocast off computes in fp32, with the weight itself
        if not torch.is_autocast_enabled(x.device.type):
            return type(layer).forward(layer, x)
        x = inputs(x)
        if isinstance(layer, nn.Linear):
            return linear(x, weight, bias)
        return patches(x, weight, bias) if _cuts_patches(layer, x) else layer._conv_forward(x, weight, bias)

    return forward


def _cuts_patches(layer: nn.Module, x: Tensor) -> bool:
    """Whether a convolution of a GPU maps separate patches, which a product computes in a third of the time."""
    if type(layer) is not nn.Conv2d or not x.is_cuda or x.dim() != 4 or layer.kernel_size != layer.stride:
        return False
    plain = layer.padding == (0, 0) and layer.dilation == (1, 1) and layer.groups == 1 and layer.kernel_size[0] > 1
    return plain and all(side % size == 0 for side, size in zip(x.shape[2:], layer.kernel_size, strict=True))


def patches(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution of x (b, c, h, w) with a stride equal to its kernel, as one product."""
    high, wide = weight.shape[2:]
    cut = x.unflatten(3, (-1, wide)).unflatten(2, (-1, high))  # (b, c, rows, high, columns, wide)
    flat = cut.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (b, rows, columns, c high wide)
    return linear(flat, weight.flatten(1), bias).permute(0, 3, 1, 2)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight' + bias; in a captured step a kernel adds up the gradient of the bias in half the time."""
    # the kernel is worth its node only for a bias that learns, over a large number of rows
    learns = torch.is_grad_enabled() and bias is not None and bias.requires_grad
    if not learns or len(weight) % COLUMNS or x.numel() < MIN_ROWS * x.shape[-1] or fused("norm", x) is None:
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # pyright: ignore[reportReturnType]


class _Linear(torch.autograd.Function):
    """A linear layer whose bias has a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        by_x, by_weight, by_bias = ctx.needs_input_grad
        rows = _rows(grads[0])
        return (
            (rows @ weight).view_as(x) if by_x else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if by_weight else None,
            kernels("norm", rows).column_sums(rows) if by_bias else None,
        )


def cast_together(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return copies of another dtype; those of tensors that need a gradient pass it on, cast together too."""
    # weights that learn in one node, whose backward pass casts all gradients in one launch; constants need no node
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
