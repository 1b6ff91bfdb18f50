"""MIL: what each step updates, the derivatives of both orders, and both phases."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.methods.base import StageInfo
from holdfast.methods.erm import ERM
from holdfast.methods.meta import look_ahead
from holdfast.methods.mil import MIL, finite_gradient
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.small import MLP, Features
from holdfast.nn.heads import Linear
from holdfast.nn.memory.neck import key_value
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify
from tests.unit.nn.transformers import LABELS, transformer

INFO = StageInfo(0, ("a", "b", "c"))
PLAIN = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, "momentum": 0.0}
SIZES = (4, 3, 5)


def batch(seed: int = 1) -> DomainBatch:
    """Return a batch of three separated domains, in float64."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 4, generator=chance).double()
    x[:, 0] += torch.arange(3).repeat_interleave(torch.tensor(SIZES)) * 1.5
    return DomainBatch(x, torch.randint(0, 2, (12,), generator=chance), (0, 1, 2), SIZES)


def network(backbone: nn.Module | None = None, **neck) -> Model:
    torch.manual_seed(0)
    made = key_value(5, **{"slots": 6, "heads": 2, "key_width": 3, "fusion": "interpolate", **neck})
    return Model(backbone or MLP(inputs=4, hidden=(5,)), made, Linear(5, 2)).double()


def mil(model=None, optim: dict | None = None, **settings) -> MIL:
    """Build the method; the memory is trained by plain SGD."""
    settings = {"critic": "adversarial", "memory_lr": 0.1, **settings}
    make = partial(Optimizer, OptimizerSettings(**{**PLAIN, **(optim or {})}))
    method = MIL(model or network(), task=Classify(), optimizer=make, **settings)
    own = replace(method.memory_optimizer.settings, optimizer="sgd", clip=0.0)
    method.memory_optimizer = Optimizer(own, method.memory_optimizer.parameters)
    torch.manual_seed(1)
    method.begin_stage(INFO)
    method.double()
    method.begin_phase(method.phases[0])
    return method.train()


def step(method: MIL, held: int = 1, data: DomainBatch | None = None):
    """Take a meta step with the given domain held out."""
    method.held_out, method.remaining = held, 1
    return method.step(data or batch())


def own(method: MIL) -> list[torch.Tensor]:
    return [p.detach().clone() for p in method.trained]


def remembered(method: MIL) -> list[torch.Tensor]:
    return [p.detach().clone() for p in method.memory_parameters]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def domain_loss(model: Model, critic: nn.Module, data: DomainBatch, held: int) -> torch.Tensor:
    """L_d as a reference: half the mean over the held-out domain, half over the rest."""
    parts = data.split(critic(model.features(data.x))[:, 0])
    rest = torch.cat([part for i, part in enumerate(parts) if i != held])
    return (
        F.binary_cross_entropy_with_logits(parts[held], torch.ones_like(parts[held]))
        + F.binary_cross_entropy_with_logits(rest, torch.zeros_like(rest))
    ) / 2


@pytest.mark.parametrize("optim", [{}, {"optimizer": "adamw", "weight_decay": 0.1}])
def test_the_network_takes_an_erm_step_on_the_other_domains(optim):
    method, model = mil(optim=optim), network()
    model.neck.requires_grad_(False)
    erm = ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(**{**PLAIN, **optim})))
    for turn in (1, 0):
        step(method, held=turn)
        erm.step(batch().hold_out(turn)[0])
        assert same(own(method), [p.detach() for p in model.trainable_parameters()])
        model.neck.load_state_dict(method.model.neck.state_dict())  # the memory of MIL's next step


@pytest.mark.parametrize("held", [0, 1, 2])
def test_the_memory_maximises_and_one_critic_minimises_the_domain_loss(held):
    method = mil(critic_lr=0.3)
    model, judges = copy.deepcopy(method.model), copy.deepcopy(method.critics)
    model.neck.requires_grad_(False)
    ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(**PLAIN))).step(
        batch().hold_out(held)[0]
    )
    model.neck.requires_grad_(True)
    memory, critic = list(model.neck.parameters()), list(judges[held].parameters())
    loss = domain_loss(model, judges[held], batch(), held)
    grads = torch.autograd.grad(loss, [*memory, *critic])
    metrics = step(method, held)
    assert_close(metrics["domain"], loss.detach())
    for now, then, grad in zip(method.memory_parameters, memory, grads, strict=False):
        assert_close(now.detach(), then.detach() + 0.1 * grad)
    for now, then, grad in zip(method.critics[held].parameters(), critic, grads[len(memory) :], strict=True):
        assert_close(now.detach(), then.detach() - 0.3 * grad)
    for other in {0, 1, 2} - {held}:
        assert same(list(method.critics[other].parameters()), list(judges[other].parameters()))


def ascent_of(monkeypatch, held: int = 1, model: Model | None = None, **settings) -> torch.Tensor:
    """Return the gradient of the memory in one step, as one vector."""
    method, found = mil(model, **settings), []
    monkeypatch.setattr(method.memory_optimizer, "apply_gradients", found.extend)
    step(method, held)
    return -torch.cat([g.flatten() for g in found])


def bilevel_loss(
    model: Model, critic: nn.Module, data: DomainBatch, lr: float, direction, amount: float, held: int
) -> float:
    """Return L_d as a function of the memory: move it, take the inner step, evaluate the held-out domain."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for p, d in zip(model.neck.parameters(), direction, strict=True):
            p += amount * d
    own = {name: p for name, p in model.named_parameters() if not name.startswith("neck.")}
    seen = data.hold_out(held)[0]
    grads = torch.autograd.grad(F.cross_entropy(model(seen.x), seen.y), list(own.values()))
    ahead = {name: p - lr * g for (name, p), g in zip(own.items(), grads, strict=True)}

    class Ahead(nn.Module):
        def features(self, x):
            wrapped = nn.Module()
            wrapped.model, wrapped.forward = model, model.features
            return functional_call(wrapped, {f"model.{k}": v for k, v in ahead.items()}, (x,))

    return float(domain_loss(Ahead(), critic, data, held).detach())


def test_finite_order_is_the_derivative_of_the_bilevel_function(monkeypatch):
    lr, eps = 0.5, 1e-6
    found = ascent_of(monkeypatch, order="finite", inner_lr=lr)
    first = ascent_of(monkeypatch, order="first", optim={"lr": lr})
    method = mil()
    chance = torch.Generator().manual_seed(3)
    for _ in range(6):
        direction = [torch.randn(p.shape, generator=chance).double() for p in method.memory_parameters]
        sides = [bilevel_loss(method.model, method.critics[1], batch(), lr, direction, s * eps, 1) for s in (1, -1)]
        slope, flat = (sides[0] - sides[1]) / (2 * eps), torch.cat([d.flatten() for d in direction])
        gap = abs(float(first @ flat) - slope)  # the second term matters
        assert gap > 0
        assert float(found @ flat) == pytest.approx(slope, abs=0.05 * gap + 1e-8)


def test_the_inner_step_of_both_orders():
    """The network takes the same step; its rate for finite differences only moves where the domain loss is taken."""
    optim, seen = {"optimizer": "adamw", "lr": 0.01}, batch().hold_out(1)[0]
    reference, ahead = mil(optim=optim), mil(optim={"lr": 0.5})
    for method in (reference, ahead):
        method.optimizer.minimize(method._risk(method.trained, seen))
    critic = mil().critics[1]
    for order, model in (("first", reference.model), ("finite", ahead.model)):
        method = mil(optim=optim, order=order, inner_lr=0.5)
        with torch.no_grad():
            expected = float(domain_loss(model, critic, batch(), 1))
        assert float(step(method)["domain"]) == pytest.approx(expected)
        assert same(own(method), own(reference)), order


def test_several_inner_steps():
    one, three = mil(inner_lr=0.1), mil(inner_lr=0.1, inner_steps=3)
    a, b = step(one), step(three)
    assert_close(a["risk"], b["risk"])
    assert not torch.equal(a["domain"], b["domain"])
    walked = mil()
    for _ in range(3):
        walked.optimizer.minimize(walked._risk(walked.trained, batch().hold_out(1)[0]))
    with torch.no_grad():
        assert_close(b["domain"], domain_loss(walked.model, mil().critics[1], batch(), 1))


@pytest.mark.parametrize("settings", [{}, {"order": "finite"}])
def test_the_inner_loss_excludes_the_held_out_domain(settings):
    data, spoilt = batch(), batch()
    at = slice(SIZES[0], SIZES[0] + SIZES[1])
    spoilt.x[at] = 50.0
    spoilt.y[at] = 1 - spoilt.y[at]
    one, other = mil(**settings), mil(**settings)
    a, b = step(one, 1, data), step(other, 1, spoilt)
    assert torch.equal(a["risk"], b["risk"])
    assert same(own(one), own(other))
    assert not same(remembered(one), remembered(other))


def test_a_domain_is_held_out_for_all_iterations(monkeypatch):
    method, held = mil(iterations=4), []
    real = method.domain_loss
    monkeypatch.setattr(method, "domain_loss", lambda *given: held.append(given[2]) or real(*given))
    torch.manual_seed(0)
    for _ in range(60):
        method.step(batch())
    blocks = [held[i : i + 4] for i in range(0, 60, 4)]
    assert all(len(set(block)) == 1 for block in blocks)
    assert set(held) == {0, 1, 2}


def test_phase_final_resets_the_network_and_freezes_the_memory():
    model = network(query_norm=True)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    method = mil(model)
    for _ in range(3):
        step(method)
    learned = {name: value.clone() for name, value in model.neck.state_dict().items()}
    assert not torch.equal(
        learned["fused.memory.query.1.running_mean"], first["neck.fused.memory.query.1.running_mean"]
    )
    method.begin_phase("final")
    method.train()
    for name, value in model.state_dict().items():
        if name.startswith("neck."):
            assert torch.equal(value, learned[name.removeprefix("neck.")]), name
        else:
            assert torch.equal(value, first[name]), name
    assert not any(p.requires_grad for p in method.memory_parameters)
    for _ in range(3):
        assert set(method.step(batch())) == {"risk"}
    assert not torch.equal(model.head.weight, first["head.weight"])
    for name, value in model.neck.state_dict().items():
        assert torch.equal(value, learned[name]), name


def test_phase_final_is_erm_on_all_domains():
    method = mil(optim={"optimizer": "adamw"})
    step(method)
    method.begin_phase("final")
    model = copy.deepcopy(method.model)
    erm = ERM(
        model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(**{**PLAIN, "optimizer": "adamw"}))
    )
    for seed in range(3):
        method.step(batch(seed)), erm.step(batch(seed))
    assert same(list(method.model.parameters()), list(model.parameters()))


def test_a_memory_lr_of_zero_skips_phase_meta():
    model = network()
    before = [p.detach().clone() for p in model.neck.parameters()]
    method = mil(model, memory_lr=0.0)
    assert method.phases == ("final",)
    method.step(batch())
    assert same([p.detach() for p in model.neck.parameters()], before)
    assert mil(network(frozen=True), memory_lr=0.0).phases == ("final",)


def test_training_only_the_values():
    method = mil(learns="values")
    before = {name: p.detach().clone() for name, p in method.model.neck.named_parameters()}
    step(method)
    moved = {name for name, p in method.model.neck.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"fused.memory.values.0"}
    assert not any(p is value for p in method.trained for value in method.memory_parameters)


def test_critic_steps_precede_the_memory_step():
    one, four = mil(critic_lr=0.1), mil(critic_lr=0.1, critic_steps=4)
    a, b = step(one), step(four)
    assert float(b["domain"]) < float(a["domain"])  # the critic improved first
    critic, walked = mil().critics[1], mil()
    walked.optimizer.minimize(walked._risk(walked.trained, batch().hold_out(1)[0]))
    for _ in range(4):
        loss = domain_loss(walked.model, critic, batch(), 1)
        grads = torch.autograd.grad(loss, list(critic.parameters()))
        with torch.no_grad():
            for p, g in zip(critic.parameters(), grads, strict=True):
                p -= 0.1 * g
    for p, q in zip(four.critics[1].parameters(), critic.parameters(), strict=True):
        assert_close(p, q)


def test_metrics_of_a_step():
    metrics = step(mil())
    assert set(metrics) == {"risk", "domain", "critic", "slots"}
    assert all(value.ndim == 0 and not value.requires_grad for value in metrics.values())
    assert 1 <= float(metrics["slots"]) <= 6
    assert 0 <= float(metrics["critic"]) <= 1
    assert set(step(mil(network(top=2)))) == {"risk", "domain", "critic"}


def test_both_sides_have_equal_weight_in_the_domain_loss():
    data, logits, method = batch(), torch.linspace(-2, 2, 12).double(), mil()
    method.critics[0] = nn.Linear(5, 1).double()
    with torch.no_grad():
        method.critics[0].weight.copy_(torch.tensor([[1.0, 0, 0, 0, 0]]))
        method.critics[0].bias.zero_()
        fused = torch.zeros(12, 5).double()
        fused[:, 0] = logits
        loss, right = method.domain_loss(fused, data, 0)
    label = torch.tensor([1.0] * 4 + [0.0] * 8).double()
    each = F.binary_cross_entropy_with_logits(logits, label, reduction="none")
    assert_close(loss, (each[:4].mean() + each[4:].mean()) / 2)
    assert float(right) == pytest.approx((0 / 4 + 2 / 8) / 2)


@pytest.mark.parametrize("order", ["first", "finite"])
@pytest.mark.parametrize("place", ["feature", "tokens", "layers"])
def test_memory_inside_a_transformer(place, order, tmp_path):
    net, x = transformer("bert", tmp_path)
    torch.manual_seed(0)
    model = Model(net, key_value(32, slots=6, heads=2, key_width=3, place=place, fusion="interpolate"), Linear(32, 2))
    method = MIL(
        model,
        task=Classify(),
        optimizer=partial(Optimizer, OptimizerSettings(lr=1e-3)),
        order=order,
        critic="adversarial",
    )
    method.begin_stage(INFO)
    method.begin_phase("meta")
    data = DomainBatch(x, LABELS, (0, 1, 2), (2, 2, 2))
    before, memory = own(method), remembered(method)
    method.train()
    step(method, data=data)
    assert len(memory) == (12 if place == "layers" else 4)
    assert all(not torch.equal(a, b) for a, b in zip(remembered(method), memory, strict=True))
    assert not same(own(method), before)
    method.begin_phase("final")
    kept = remembered(method)
    assert same(own(method), before)
    method.step(data)
    assert same(remembered(method), kept)


def test_networks_without_a_trainable_memory_are_errors():
    plain = Model(Features(inputs=4), NoNeck(4), Linear(4, 2))
    with pytest.raises(BadInput, match=r"mil.*neck=memory"):
        MIL(plain, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings()))
    with pytest.raises(BadInput, match="use inner_steps=1 or order=first"):
        mil(order="finite", inner_steps=2)
    with pytest.raises(BadInput, match=r"neck\.frozen.*memory_lr=0"):
        mil(network(frozen=True))


def test_a_gate_is_trained_with_the_memory():
    for learns in ("all", "values"):
        method = mil(network(fusion="gate"), learns=learns)
        for _ in range(3):
            step(method)
        blend = method.model.neck.fused
        assert float(blend.gate.detach()) != 0


def test_finite_differences_where_the_outer_loss_does_not_depend_on_the_inner_step():
    m, now = torch.randn(4).double().requires_grad_(), [torch.ones(4).double().requires_grad_()]

    def inner(theta):
        return (theta[0] * m).square().sum()

    _, _, ahead = look_ahead(inner, now, lr=0.1)
    (grad,) = finite_gradient((m**3).sum(), [m], inner=inner, now=now, ahead=ahead, lr=0.1)
    assert_close(grad, 3 * m.detach() ** 2)


def test_finite_differences_use_equal_dropout_masks():
    m, now = torch.ones(50, dtype=torch.float64, requires_grad=True), [torch.ones(50).double().requires_grad_()]

    def inner(theta):
        return (F.dropout(theta[0], 0.5) * m).sum()

    torch.manual_seed(0)
    _, _, ahead = look_ahead(inner, now, lr=1.0)
    (grad,) = finite_gradient(ahead[0].sum(), [m], inner=inner, now=now, ahead=ahead, lr=1.0)
    # dL/dm is theta with half of it dropped: its derivative along v = 1 is 0 or 2, times -lr
    assert set(grad.round(decimals=6).tolist()) == {0.0, -2.0}
