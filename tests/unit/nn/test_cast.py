"""Weights that are cast together give the values and gradients of autocast, with fewer kernels."""

import copy
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.accel.cast import cast_together, patches, weights_cast_once
from holdfast.accel.registry import fused_kernels
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck

LOW = torch.bfloat16


class Fp32Gate(nn.Module):
    """A linear layer that computes in full precision, and a product with its transposed weight under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            gate = self.inner(x.float())
        assert gate.dtype == torch.float32
        return gate @ self.inner.weight.T


class Calls(TorchDispatchMode):
    """Counts casts of single tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    shared = nn.Linear(6, 6)
    return nn.Sequential(
        nn.Conv2d(2, 3, 2, bias=False), nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 6), nn.GELU(), Fp32Gate(), shared,
        nn.Tanh(), shared,
    )  # fmt: skip


def _inputs() -> Tensor:
    return torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(1))


def _gradients(network: nn.Module, *, together: bool) -> tuple[Tensor, list[Tensor | None]]:
    with torch.autocast("cpu", LOW):
        if together:
            with weights_cast_once(network):
                output = network(_inputs())
        else:
            output = network(_inputs())
    output.float().square().sum().backward()
    return output, [p.grad for p in network.parameters()]


@pytest.mark.parametrize("frozen", [False, True])
def test_values_and_gradients_are_those_of_autocast(frozen: bool) -> None:
    network = _network()
    network[3].requires_grad_(not frozen)
    expected, gradients = _gradients(copy.deepcopy(network), together=False)
    output, others = _gradients(network, together=True)
    assert output.dtype == LOW
    assert torch.equal(output, expected)
    assert [gradient is None for gradient in others].count(True) == (2 if frozen else 0)
    for a, b in zip(gradients, others, strict=True):
        assert a is b is None or (a.dtype == b.dtype == torch.float32 and torch.equal(a, b))
    assert all("forward" not in module.__dict__ for module in network.modules())


def test_one_launch_replaces_the_casts_of_all_weights() -> None:
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))

    def casts(together: bool) -> Counter[str]:
        with Calls() as calls, torch.autocast("cpu", LOW):
            if together:
                with weights_cast_once(network):
                    output = network(torch.randn(2, 4))
            else:
                output = network(torch.randn(2, 4))
            output.sum().backward()
        return calls.counts

    assert casts(False)["_to_copy"] == 13  # forward and backward, three weights and three biases, and the input
    counts = casts(True)
    assert counts["_to_copy"] == 1
    assert counts["_foreach_copy_"] == 2


class Attention(nn.Module):
    """Three layers that read the same input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return sum(part(x) for part in self.parts)  # pyright: ignore[reportReturnType]


def test_an_input_of_several_layers_is_cast_once() -> None:
    network, x = Attention(), torch.randn(2, 4, requires_grad=True)
    with torch.autocast("cpu", LOW):
        expected = network(x)
        with Calls() as calls, weights_cast_once(network):
            output = network(x)
    assert torch.equal(output, expected)
    assert calls.counts["_to_copy"] == 1
    (gradient,) = torch.autograd.grad(output.float().sum(), x)
    weights = torch.stack([p for name, p in network.named_parameters() if name.endswith("weight")])  # (3, 4, 4)
    torch.testing.assert_close(gradient, weights.sum((0, 1)).expand(2, 4), rtol=0.02, atol=0.02)


def test_an_input_that_changed_is_cast_again() -> None:
    network, x = nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4)
    with torch.autocast("cpu", LOW), torch.no_grad(), weights_cast_once(network):
        first = network(x)
        second = network(x.mul_(2))
    assert not torch.equal(first, second)


def test_second_derivatives_pass_through() -> None:
    weight = torch.tensor([1.5, -2.0], requires_grad=True)
    (low,) = cast_together([weight], LOW)
    (first,) = torch.autograd.grad((low.float() ** 3).sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), weight)
    assert first.tolist() == [6.75, 12.0]
    assert second.tolist() == [9.0, -12.0]


def test_parameters_of_a_functional_call_are_used() -> None:
    network = nn.Sequential(nn.Linear(3, 2))
    other = {name: (2 * p).detach().requires_grad_() for name, p in network.named_parameters()}
    inner = Wrapped(network)
    with torch.autocast("cpu", LOW):
        output = functional_call(inner, {f"network.{name}": p for name, p in other.items()}, (torch.ones(1, 3),))
        expected = nn.functional.linear(torch.ones(1, 3), other["0.weight"], other["0.bias"])
    assert torch.equal(output, expected)
    output.sum().backward()
    assert all(p.grad is not None for p in other.values())
    assert network[0].weight.grad is None


class Wrapped(nn.Module):
    """Casts the weights of a network inside its forward pass."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        with weights_cast_once(self.network):
            return self.network(x)


def test_an_error_inside_restores_the_layers() -> None:
    network = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="stop"), weights_cast_once(network):
        raise ValueError("stop")
    assert "forward" not in network[0].__dict__


def test_compiled_parts_stay_as_they_are() -> None:
    network = nn.Sequential(nn.Linear(3, 2))
    network[0].compile(backend="eager")
    with weights_cast_once(network):
        assert "forward" not in network[0].__dict__


@pytest.mark.gpu
def test_a_model_on_a_gpu_equals_autocast() -> None:
    def outputs(together: bool) -> tuple[Tensor, list[Tensor | None]]:
        torch.manual_seed(0)
        conv = nn.Conv2d(3, 8, 3)
        conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
        body = nn.Sequential(conv, nn.Flatten(), nn.Linear(8 * 36, 32), nn.LayerNorm(32))
        model = Model(body, NoNeck(32), Linear(32, 3), precision="bf16").cuda()
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2)).cuda()
        if together:
            value = model(x)
        else:
            with torch.autocast("cuda", LOW):
                z = model.backbone(x)
            value = model.classify(z.float())
        value.square().sum().backward()
        return value, [p.grad for p in model.parameters()]

    (a, first), (b, second) = outputs(True), outputs(False)
    torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)  # convolutions may add in another order
    for x, y in zip(first, second, strict=True):
        torch.testing.assert_close(x, y, rtol=0.05, atol=0.05 * float(torch.as_tensor(y).abs().max()))


@pytest.mark.parametrize("bias", [False, True])
def test_patches_equal_a_convolution(bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Conv2d(3, 8, (4, 2), (4, 2), bias=bias), torch.randn(2, 3, 8, 6)
    torch.testing.assert_close(patches(x, layer.weight, layer.bias), layer(x), rtol=1e-5, atol=1e-5)


class Patches(nn.Module):
    """A small vision transformer without attention: its layers are those that kernels replace."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.before, self.after = nn.Conv2d(3, 64, 4, 4), nn.LayerNorm(64), nn.LayerNorm(64)
        self.up, self.down, self.head = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = x + self.down(self.up(self.before(x)).relu())
        last = self.after(x)
        return self.head(last).float().mean(1) + last.mean(1)  # a layer norm whose both results are used


def _patch_gradients(device: torch.device, *, low: bool, fused: bool) -> list[Tensor]:
    torch.manual_seed(0)
    network, x = Patches().to(device), torch.randn(64, 3, 32, 32, device=device)
    contexts = (fused_kernels(), weights_cast_once(network)) if fused else (nullcontext(), nullcontext())
    with torch.autocast(device.type, LOW, enabled=low), contexts[0], contexts[1]:
        output = network(x)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).to(device)
    grads = torch.autograd.grad((output * weights).sum(), list(network.parameters()))
    plain = torch.autograd.grad((network(x) * weights).sum(), network.head.bias)
    assert len(plain) == 1
    return [output.detach(), *grads]


@pytest.mark.gpu
def test_fused_layers_are_as_close_to_full_precision_as_autocast() -> None:
    device = torch.device("cuda")
    exact = _patch_gradients(device, low=False, fused=False)
    errors = [
        [
            float((a - b).norm() / a.norm())
            for a, b in zip(exact, _patch_gradients(device, low=True, fused=fused), strict=True)
        ]
        for fused in (False, True)
    ]
    for usual, own in zip(*errors, strict=True):
        assert own < max(1.5 * usual, 0.02)
