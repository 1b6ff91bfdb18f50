"""Batch normalisation, residual and ReLU in one pass over the activations, in steps that are captured as CUDA graphs.

As separate operations they read or write an activation thirteen times per training step, here eight times; in a ResNet
they take more time than the convolutions. Elsewhere the usual operations of torch run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from holdfast.accel.registry import fused, kernels
from holdfast.ops import norms

COLUMNS = 64  # the number of channels must be a multiple


def normed(norm: nn.Module, x: Tensor, *, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """Compute `ops.norms.normed`."""
    if not _fuses(norm, x, residual):
        return norms.normed(norm, x, residual=residual, relu=relu)
    assert isinstance(norm, nn.BatchNorm2d)
    if norm.training:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
    return _Norm.apply(x, residual, norm.weight, norm.bias, norm, relu)  # pyright: ignore[reportReturnType]


def _fuses(norm: nn.Module, x: Tensor, residual: Tensor | None) -> bool:
    if type(norm) is not nn.BatchNorm2d or torch.compiler.is_compiling() or fused("norm", x) is None:
        return False
    if norm._forward_hooks or norm._forward_pre_hooks:
        return False
    plain = norm.affine and norm.track_running_stats and norm.momentum is not None and x.shape[1] % COLUMNS == 0
    same = residual is None or (residual.dtype == x.dtype and residual.shape == x.shape and _is_matrix(residual))
    return plain and same and _is_matrix(x) and x.numel() > 0


def _is_matrix(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def _matrix(x: Tensor) -> Tensor:
    """(m, c) view of images in channels-last order."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


class _Norm(torch.autograd.Function):
    """relu(norm(x) + residual) by kernels."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, relu: bool
    ) -> Tensor:
        module = kernels("norm", x)
        means, variances = norm.running_mean, norm.running_var
        assert means is not None
        assert variances is not None
        if norm.training:
            mean, inverse = module.batch_statistics(_matrix(x), (means, variances), norm.eps, norm.momentum)
        else:
            mean, inverse = means.clone(), torch.rsqrt(variances + norm.eps)
        rows = None if residual is None else _matrix(residual)
        flat = module.normalise(_matrix(x), rows, mean, inverse, weight, bias, relu=relu)
        b, c, h, w = x.shape
        out = flat.view(b, h, w, c).permute(0, 3, 1, 2)
        ctx.save_for_backward(x, residual, weight, bias, mean, inverse, out if residual is not None and relu else None)
        ctx.batch, ctx.relu = norm.training, relu
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, residual, weight, bias, mean, inverse, out = ctx.saved_tensors
        grad = grads[0]
        grad = grad.to(x.dtype).contiguous(memory_format=torch.channels_last)
        result = None if residual is None else _matrix(x if out is None else out)
        by_x, by_residual, by_weight, by_bias = kernels("norm", x).normalise_backward(
            _matrix(grad), _matrix(x), result, mean, inverse, weight, bias, relu=ctx.relu, batch=ctx.batch
        )
        b, c, h, w = x.shape
        images = [None if g is None else g.view(b, h, w, c).permute(0, 3, 1, 2) for g in (by_x, by_residual)]
        return *images, by_weight.to(weight.dtype), by_bias.to(bias.dtype), None, None
