"""Batch norm with residual and ReLU: equal to the separate operations, also by kernels on a GPU."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from holdfast.accel.batch_norm import normed
from holdfast.accel.registry import fused_kernels
from holdfast.nn.backbones.resnet import ResNet

CASES = list(product((False, True), repeat=3))  # residual, relu, training


def separate(norm: nn.Module, x: Tensor, *, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    out = norm(x) if residual is None else norm(x) + residual
    return F.relu(out) if relu else out


def batch_norm(device: str, *, training: bool) -> nn.BatchNorm2d:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(64).to(device).train(training)
    for values in (norm.weight, norm.bias, norm.running_mean):
        assert values is not None
        nn.init.normal_(values)
    assert norm.running_var is not None
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


def images(device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(1)
    x = (3 + torch.randn(5, 64, 7, 9)).to(device, dtype)  # a mean of several standard deviations
    return x.contiguous(memory_format=torch.channels_last)


def results(function, norm: nn.BatchNorm2d, x: Tensor, *, residual: bool, relu: bool) -> list[Tensor]:
    """Return the output, all gradients and the running statistics."""
    torch.manual_seed(2)
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    other = torch.randn_like(x).requires_grad_() if residual else None
    out = function(norm, x, residual=other, relu=relu)
    out.backward(torch.randn_like(out))
    grads = [each.grad for each in (x, other, norm.weight, norm.bias) if each is not None]
    buffers = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
    return [each.detach() for each in (out, *grads, *buffers) if each is not None]


@pytest.mark.parametrize(("residual", "relu", "training"), CASES)
def test_kernels_equal_the_operations_of_torch(
    kernel_device: torch.device, residual: bool, relu: bool, training: bool
) -> None:
    options, device = {"residual": residual, "relu": relu}, str(kernel_device)
    expected = results(separate, batch_norm(device, training=training), images(device), **options)
    with fused_kernels():
        found = results(normed, batch_norm(device, training=training), images(device), **options)
    plain = results(normed, batch_norm(device, training=training), images(device), **options)
    for a, b, c in zip(expected, found, plain, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert torch.equal(a, c)  # outside of captured steps the operations of torch run


@pytest.mark.parametrize("relu", [False, True])
def test_kernels_in_lower_precision_are_close(kernel_device: torch.device, relu: bool) -> None:
    options, device = {"residual": True, "relu": relu}, str(kernel_device)
    exact = results(separate, batch_norm(device, training=True), images(device), **options)
    low = images(device, torch.bfloat16)
    with fused_kernels():
        found = results(normed, batch_norm(device, training=True), low, **options)
    assert found[0].dtype == torch.bfloat16
    for a, b in zip(exact[:1] + exact[3:], found[:1] + found[3:], strict=True):
        error = (a.float() - b.float()).norm() / a.float().norm()
        assert float(error) < 0.05


def test_kernels_are_reproducible(kernel_device: torch.device) -> None:
    found = []
    for function in (separate, normed, normed):
        norm, x = batch_norm(str(kernel_device), training=True), images(str(kernel_device)).requires_grad_()
        with fused_kernels():
            out = function(norm, x)
        found.append(torch.autograd.grad(out.square().sum(), x)[0])
    assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)
    assert torch.equal(found[1], found[2])


@pytest.mark.gpu
def test_kernels_are_used_in_captured_steps_only() -> None:
    network = ResNet(depth=18, stem="small", size=32).to("cuda", memory_format=torch.channels_last)
    x = torch.rand(2, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)

    def names(out: Tensor) -> set[str]:
        seen, waiting = set(), [out.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [each for each, _ in node.next_functions]
        return {type(node).__name__ for node in seen}

    assert "_NormBackward" not in names(network(x))
    with fused_kernels():
        assert "_NormBackward" in names(network(x))
        hooked = ResNet(depth=18, stem="small", size=32).to("cuda", memory_format=torch.channels_last)
        seen = []
        hooked.bn1.register_forward_hook(lambda *_: seen.append(1))
        hooked(x)
        assert seen == [1]
