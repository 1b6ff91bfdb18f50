"""The optimizer of a method: updates, accumulation, clipping, schedules and state."""

import math

import pytest
import torch
from torch import nn

from holdfast.core.errors import BadInput
from holdfast.methods import optim
from holdfast.methods.optim import Optimizer, OptimizerSettings


def parameter():
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(4))


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("adamw", lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01, momentum=0.9)),
    ],
)
def test_updates_equal_those_of_torch(name, reference):
    mine, other = parameter(), parameter()
    tested, optimizer = Optimizer(OptimizerSettings(optimizer=name, lr=0.1), [mine]), reference([other])
    for _ in range(5):
        tested.minimize((mine**4).sum())
        optimizer.zero_grad()
        (other**4).sum().backward()
        optimizer.step()
    torch.testing.assert_close(mine, other)


def test_accumulated_halves_equal_the_full_batch():
    full, halves = parameter(), parameter()
    x = torch.randn(8, 4)
    one = Optimizer(OptimizerSettings(optimizer="sgd", lr=0.1), [full])
    two = Optimizer(OptimizerSettings(optimizer="sgd", lr=0.1, accumulate=2), [halves])
    for _ in range(3):
        one.minimize((x @ full).pow(2).mean())
        two.minimize((x[:4] @ halves).pow(2).mean())
        two.minimize((x[4:] @ halves).pow(2).mean())
    torch.testing.assert_close(full, halves)


def test_other_parameters_get_no_gradient():
    mine, other = parameter(), parameter()
    Optimizer(OptimizerSettings(), [mine]).minimize((mine * other).sum())
    assert other.grad is None
    assert torch.equal(other, parameter())


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_expanded_and_shared_gradients(name, clip):
    """The gradient of a sum is an expanded scalar, and two parameters may share one gradient tensor."""
    torch.manual_seed(0)
    ends = []
    for scale in (0.0, 1.0):
        a, b = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(5, 3))
        start = a.detach().clone(), b.detach().clone()
        optimizer = Optimizer(OptimizerSettings(optimizer=name, lr=0.1, weight_decay=0.0, clip=clip), [a, b])
        optimizer.minimize(scale * (a + b).sum())
        for p, before in zip((a, b), start, strict=True):
            moved = (before - p.detach()).flatten()
            assert torch.isfinite(p).all()
            assert torch.allclose(moved, moved[0].expand_as(moved), atol=1e-6)
        ends.append(moved[0].item())
    assert ends[0] == 0.0
    expected = 0.1 if name != "sgd" else 0.1 * (1.0 if not clip else 1 / 30**0.5)
    assert ends[1] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_an_update_on_a_gpu_clips_in_the_same_pass(name, clip, device, monkeypatch):
    """As on a CPU, for which this is tested too."""
    ended = []
    for fused in (False, True):
        monkeypatch.setattr(optim, "_on_gpu", lambda grads, fused=fused: fused)
        torch.manual_seed(0)
        p, table = (nn.Parameter(torch.randn(6, 3, device=device)) for _ in range(2))
        optimizer = Optimizer(OptimizerSettings(optimizer=name, lr=0.1, clip=clip), [p, table])
        for _ in range(4):
            read = nn.functional.embedding(torch.tensor([1, 4], device=device), table)
            optimizer.minimize((p**4).sum() + read.square().sum())
        ended.append((p, table))
        assert optimizer.optimizer.grad_scale is None
    for actual, expected in zip(*reversed(ended), strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.isfinite().all()


def test_clipping_bounds_the_step():
    p = parameter()
    before = p.detach().clone()
    Optimizer(OptimizerSettings(optimizer="sgd", lr=1.0, weight_decay=0.0, clip=0.5), [p]).minimize((1000 * p).sum())
    assert math.isclose((p - before).norm().item(), 0.5, rel_tol=1e-4)


def test_schedules_warm_up_and_decay():
    linear = OptimizerSettings(schedule="linear", warmup=2, steps=12)
    assert [linear.factor(i) for i in (0, 1, 2, 7, 12, 50)] == [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    cosine = OptimizerSettings(schedule="cosine", steps=10)
    assert cosine.factor(0) == 1.0
    assert cosine.factor(5) == pytest.approx(0.5)
    assert cosine.factor(10) == pytest.approx(0.0)
    halving = OptimizerSettings(schedule="halving", steps=800)
    assert [halving.factor(i) for i in (0, 99, 100, 250, 799, 900)] == [1.0, 1.0, 0.5, 0.25, 0.5**7, 0.5**7]
    assert OptimizerSettings(warmup=4).factor(1000) == 1.0
    p = parameter()
    optimizer = Optimizer(OptimizerSettings(lr=0.1, warmup=10), [p])
    optimizer.minimize(p.sum())
    assert optimizer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_restart_resets_the_schedule_and_drops_accumulated_gradients():
    p = parameter()
    optimizer = Optimizer(OptimizerSettings(lr=0.1, schedule="linear", steps=4, accumulate=2), [p])
    for _ in range(5):
        optimizer.minimize(p.sum())
    assert optimizer.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    optimizer.restart()
    optimizer.minimize(p.sum())
    optimizer.minimize(p.sum())
    assert optimizer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_resetting_moments_keeps_the_schedule():
    p = parameter()
    optimizer = Optimizer(OptimizerSettings(lr=1.0, schedule="linear", steps=4, weight_decay=0.0), [p])
    for _ in range(2):
        optimizer.minimize((100 * p).sum())
    optimizer.reset_moments()
    before = p.detach().clone()
    optimizer.minimize((-p).sum())  # with its first moments, Adam takes a step of the learning rate
    torch.testing.assert_close(p.detach() - before, torch.full((4,), 0.5))


def test_state_of_earlier_versions_has_no_count_of_steps():
    p = parameter()
    optimizer = Optimizer(OptimizerSettings(lr=1.0, schedule="linear", steps=4), [p])
    state = optimizer.state_dict()
    del state["finished"]
    optimizer.load_state_dict({**state, "calls": 7, "began": 5})
    assert optimizer.finished == 2


def test_rates_per_part():
    weights, bias, head = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, 2))
    settings = OptimizerSettings(optimizer="sgd", lr=0.1, momentum=0.0, rates={"head": 10.0}, warmup=2, weight_decay=0)
    optimizer = Optimizer(settings, [weights, bias, head], part_names=["encoder", "encoder", "head"])
    optimizer.minimize(sum(p.sum() for p in optimizer.parameters))
    moved = [round(1 - p.detach().flatten()[0].item(), 4) for p in optimizer.parameters]
    assert moved == [0.05, 0.05, 0.5]


def test_decay_of_weights_skips_vectors_and_named_parameters():
    matrix, vector, position = (nn.Parameter(torch.ones(size)) for size in ((2, 2), (2,), (2, 2)))
    settings = OptimizerSettings(lr=0.1, weight_decay=0.5, decay="weights")
    optimizer = Optimizer(settings, [matrix, vector, position], undecayed={id(position)})
    optimizer.minimize(sum(p.sum() * 0 for p in optimizer.parameters))
    assert [p.detach().max().item() for p in optimizer.parameters] == pytest.approx([0.95, 1.0, 1.0])


def test_bad_settings_are_errors():
    for name, wrong, message in (
        ("optimizer", "adamx", "must be adamw, adam or sgd, got 'adamx'"), ("schedule", "step", "got 'step'"),
        ("lr", 0.0, "above 0, got 0.0"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=f"`{name}` .*{message}"):
            OptimizerSettings(**{name: wrong})


def test_a_frozen_network_is_an_error():
    with pytest.raises(BadInput, match="frozen"):
        Optimizer(OptimizerSettings(), [])


def test_sgd_with_a_parameter_that_gets_its_first_gradient_late():
    fused = [nn.Parameter(torch.tensor([float(i)])) for i in range(2)]
    plain = [nn.Parameter(p.detach().clone()) for p in fused]
    optimizer = Optimizer(OptimizerSettings(optimizer="sgd", lr=0.1), fused)
    reference = torch.optim.SGD(plain, lr=0.1, momentum=0.9, weight_decay=0.01)
    for grads in ((1.0, None), (2.0, 3.0), (None, 1.0)):
        optimizer.apply_gradients([None if g is None else torch.tensor([g]) for g in grads])
        for p, g in zip(plain, grads, strict=True):
            p.grad = None if g is None else torch.tensor([g])
        reference.step()
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_weight_decay_skips_scalars(name):
    moved = []
    for decay in (0.0, 0.3):
        matrix, vector, scalar = (nn.Parameter(torch.ones(size)) for size in ((2, 2), (2,), ()))
        optimizer = Optimizer(OptimizerSettings(optimizer=name, weight_decay=decay), [matrix, vector, scalar])
        for slope in (1.0, 3.0):  # the same gradients, whatever the value
            optimizer.minimize(slope * sum(p.sum() for p in optimizer.parameters))
        moved.append([p.detach().mean().item() for p in optimizer.parameters])
    assert [a == b for a, b in zip(*moved, strict=True)] == [False, False, True]


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_moments_of_a_checkpoint_take_the_memory_layout_of_the_weights(name):
    """Files hold contiguous tensors; the weights of convolutions may have channels last."""
    torch.manual_seed(0)
    start, x = torch.randn(4, 3, 3, 3), torch.randn(2, 3, 5, 5)
    settings, results = OptimizerSettings(optimizer=name, lr=0.1), []
    for layout in (torch.contiguous_format, torch.channels_last):
        weight = nn.Parameter(start.clone().contiguous(memory_format=layout))
        optimizer = Optimizer(settings, [weight])
        optimizer.minimize(torch.conv2d(x, weight).pow(2).mean())
        state = optimizer.state_dict()
        moments = state["optimizer"]["state"][0]
        moments.update({key: value.contiguous() for key, value in moments.items() if value is not None})
        optimizer.load_state_dict(state)
        assert all(value.stride() == weight.stride() for value in optimizer.state_tensors() if value.dim())
        optimizer.minimize(torch.conv2d(x, weight).pow(2).mean())
        results.append(weight.detach().contiguous())
    torch.testing.assert_close(*results)
