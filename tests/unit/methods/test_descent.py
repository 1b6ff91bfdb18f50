import math

import pytest
import torch
from torch import nn

from holdfast.core.errors import BadInput
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.experts.router import CosineRouter


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
def test_it_is_torchs_optimizer(name, reference):
    mine, other = parameter(), parameter()
    descent, optimizer = Optimizer(OptimizerSettings(optimizer=name, lr=0.1), [mine]), reference([other])
    for _ in range(5):
        descent.minimize((mine**4).sum())
        optimizer.zero_grad()
        (other**4).sum().backward()
        optimizer.step()
    torch.testing.assert_close(mine, other)


def test_accumulated_halves_equal_the_whole():
    whole, halves = parameter(), parameter()
    x = torch.randn(8, 4)
    one = Optimizer(OptimizerSettings(optimizer="sgd", lr=0.1), [whole])
    two = Optimizer(OptimizerSettings(optimizer="sgd", lr=0.1, accumulate=2), [halves])
    for _ in range(3):
        one.minimize((x @ whole).pow(2).mean())
        two.minimize((x[:4] @ halves).pow(2).mean())
        two.minimize((x[4:] @ halves).pow(2).mean())
    torch.testing.assert_close(whole, halves)


def test_only_its_own_parameters_get_gradients():
    mine, other = parameter(), parameter()
    Optimizer(OptimizerSettings(), [mine]).minimize((mine * other).sum())
    assert other.grad is None
    assert torch.equal(other, parameter())


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_expanded_and_shared_gradients_are_read_right(name, clip):
    """autograd.grad gives a sum's gradient as one number expanded, and one tensor for two equal roles."""
    torch.manual_seed(0)
    ends = []
    for scale in (0.0, 1.0):
        a, b = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(5, 3))
        start = a.detach().clone(), b.detach().clone()
        descent = Optimizer(OptimizerSettings(optimizer=name, lr=0.1, weight_decay=0.0, clip=clip), [a, b])
        descent.minimize(scale * (a + b).sum())
        for p, before in zip((a, b), start, strict=True):
            moved = (before - p.detach()).flatten()
            assert torch.isfinite(p).all()
            assert torch.allclose(moved, moved[0].expand_as(moved), atol=1e-6)
        ends.append(moved[0].item())
    assert ends[0] == 0.0
    whole = 0.1 if name != "sgd" else 0.1 * (1.0 if not clip else 1 / 30**0.5)
    assert ends[1] == pytest.approx(whole, rel=1e-3)


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
    descent = Optimizer(OptimizerSettings(lr=0.1, warmup=10), [p])
    descent.minimize(p.sum())
    assert descent.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_restart_begins_the_schedule_anew_and_drops_half_gathered_gradients():
    p = parameter()
    descent = Optimizer(OptimizerSettings(lr=0.1, schedule="linear", steps=4, accumulate=2), [p])
    for _ in range(5):
        descent.minimize(p.sum())
    assert descent.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    descent.restart()
    descent.minimize(p.sum())
    descent.minimize(p.sum())
    assert descent.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_grown_parameters_are_adopted():
    p, new = parameter(), nn.Parameter(torch.ones(2))
    descent = Optimizer(OptimizerSettings(lr=0.1), [p])
    descent.add_parameters([new])
    descent.minimize(p.sum() + new.sum())
    assert not torch.equal(new, torch.ones(2))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"optimizer": "adamx"}, "did you mean 'adam"),
        ({"schedule": "step"}, "unknown schedule"),
        ({"lr": 0.0}, "above 0"),
    ],
)
def test_bad_recipes_are_refused(wrong, said):
    with pytest.raises(BadInput, match=said):
        OptimizerSettings(**wrong)


def test_nothing_to_train_says_so():
    with pytest.raises(BadInput, match="whole network is frozen"):
        Optimizer(OptimizerSettings(), [])


def test_sgd_takes_a_parameter_that_had_no_gradient_before():
    fused = [nn.Parameter(torch.tensor([float(i)])) for i in range(2)]
    plain = [nn.Parameter(p.detach().clone()) for p in fused]
    descent = Optimizer(OptimizerSettings(optimizer="sgd", lr=0.1), fused)
    reference = torch.optim.SGD(plain, lr=0.1, momentum=0.9, weight_decay=0.01)
    for grads in ((1.0, None), (2.0, 3.0), (None, 1.0)):
        descent.apply_gradients([None if g is None else torch.tensor([g]) for g in grads])
        for p, g in zip(plain, grads, strict=True):
            p.grad = None if g is None else torch.tensor([g])
        reference.step()
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b)


def a_router():
    torch.manual_seed(0)
    return CosineRouter(3, 4, inner=2)


def three_steps(net, descent):
    for _ in range(3):
        descent.minimize(net(torch.ones(2, 3)).square().sum())


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_a_temperature_is_not_decayed_and_all_else_is(name):
    moved = {}
    for decay in (0.0, 0.3):
        net = a_router()
        descent = Optimizer(OptimizerSettings(optimizer=name, lr=0.01, weight_decay=decay), list(net.parameters()))
        for slope in (1.0, 3.0):  # the same gradients, whatever the value
            descent.minimize(slope * sum(p.sum() for p in net.parameters()))
        moved[decay] = {key: value.detach().clone() for key, value in net.named_parameters()}
    assert torch.equal(moved[0.0]["log_scale"], moved[0.3]["log_scale"])
    for key in ("project.weight", "project.bias", "directions"):
        assert not torch.equal(moved[0.0][key], moved[0.3][key]), key


@pytest.mark.parametrize("grown", [False, True])
def test_a_state_from_before_temperatures_had_a_group_loads(grown):
    recipe, more = OptimizerSettings(lr=0.01, weight_decay=0.3), nn.Parameter(torch.ones(2))
    old, new = a_router(), a_router()
    states = torch.optim.AdamW(old.parameters(), lr=0.01, weight_decay=0.3, fused=True)
    if grown:
        states.add_param_group({"params": [more]})
    for p in (*old.parameters(), *([more] if grown else [])):
        p.grad = torch.full_like(p, float(p.numel()))
    states.step()
    descent = Optimizer(recipe, list(new.parameters()))
    if grown:
        descent.add_parameters([more])
    descent.load_state_dict({"optimizer": states.state_dict(), "calls": 1, "began": 0, "grads": []})
    for before, after in zip(old.parameters(), new.parameters(), strict=True):
        held = descent.optimizer.state[after]["exp_avg"]
        assert torch.equal(held, states.state[before]["exp_avg"])
    decays = [group["weight_decay"] for group in descent.optimizer.param_groups]
    assert decays == [0.3, 0.0, 0.3][: 3 if grown else 2]
    three_steps(new, descent)
    again = Optimizer(recipe, list(new.parameters()))
    if grown:
        again.add_parameters([more])
    again.load_state_dict(descent.state_dict())  # as it is saved now
    assert torch.equal(
        again.optimizer.state[new.log_scale]["exp_avg"], descent.optimizer.state[new.log_scale]["exp_avg"]
    )


def test_without_lone_numbers_or_decay_there_is_one_group():
    plain = Optimizer(OptimizerSettings(), list(nn.Linear(2, 2).parameters()))
    undecayed = Optimizer(OptimizerSettings(weight_decay=0.0), list(a_router().parameters()))
    assert len(plain.optimizer.param_groups) == len(undecayed.optimizer.param_groups) == 1
