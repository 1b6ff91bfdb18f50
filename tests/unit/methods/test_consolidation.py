"""Elastic weight consolidation and synaptic intelligence compared with closed forms and a path computed by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.core.batch import DomainBatch
from holdfast.methods.consolidation import EWC, SynapticIntelligence
from holdfast.nn.backbones.small import Features
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify
from tests.unit.methods.streams import batch_of, begin, build, linear, make_optimizer, perceptron


@pytest.fixture
def true_labels(monkeypatch):
    """Use the true labels for the Fisher information, which is then not random."""
    monkeypatch.setattr(Classify, "sample_targets", lambda self, output, y: y)


def learned(stages=1, **settings):
    """Return a logistic regression after some stages without training."""
    method = build(EWC, linear(), **settings)
    for index in range(stages):
        begin(method, index)
        method.end_stage([batch_of(index, slice(0, 50))])
        with torch.no_grad():
            method.model.head.weight += 0.1 * (index + 1)
    begin(method, stages)
    return method


def probabilities(method, x):
    weight, bias = (t.detach().double().numpy() for t in (method.model.head.weight, method.model.head.bias))
    logits = x @ weight.T + bias
    exp = np.exp(logits - logits.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)  # (n, c)


def squared(error, x):
    """Return (p,) the mean squared gradients: error x^T for the weights, error for the bias."""
    weight = np.einsum("nc,nd->cd", error**2, x**2) / len(x)
    return np.concatenate([weight.ravel(), (error**2).mean(0)])


def test_the_penalty_and_its_gradient_are_the_closed_form():
    method = learned(stages=2, weight=3.0)
    theta = torch.cat([p.detach().flatten() for p in method.optimizer.parameters])
    first, second = method.anchors[0], method.anchors[1]
    assert not torch.equal(first.theta, second.theta)
    value = sum(3.0 / 2 * (a.fisher * (theta - a.theta) ** 2).sum() for a in (first, second))
    torch.testing.assert_close(method.penalty(), value)
    grads = torch.autograd.grad(method.penalty(), method.optimizer.parameters)
    wanted = sum(3.0 * a.fisher * (theta - a.theta) for a in (first, second))
    torch.testing.assert_close(torch.cat([g.flatten() for g in grads]), wanted)


def test_the_fisher_with_true_labels_of_a_logistic_regression(true_labels):
    method, batch = build(EWC, linear()), batch_of(0, slice(0, 60))
    begin(method, 0)
    method.end_stage([batch])
    x = batch.x.double().numpy()
    error = probabilities(method, x) - np.eye(2)[batch.y.numpy()]
    np.testing.assert_allclose(method.anchors[0].fisher.numpy(), squared(error, x), rtol=1e-4, atol=1e-9)


@pytest.mark.slow
def test_the_fisher_of_a_logistic_regression():
    """With sampled labels the expectation is p (1 - p) x^2."""
    model = linear()
    with torch.no_grad():
        model.head.weight *= 0.1  # uncertain predictions make sampled labels informative
    method, batch = build(EWC, model, samples=10_000), batch_of(0, slice(0, 60))
    begin(method, 0)
    torch.manual_seed(0)
    method.end_stage([batch] * 50)
    x = batch.x.double().numpy()
    p = probabilities(method, x)
    np.testing.assert_allclose(method.anchors[0].fisher.numpy(), squared(np.sqrt(p * (1 - p)), x), rtol=0.08)


def test_the_fisher_does_not_depend_on_the_batch_size():
    found = []
    for cuts in ([range(60)], [range(7), range(7, 31), range(31, 60)], [[i] for i in range(60)]):
        method = build(EWC, linear(), samples=25)
        begin(method, 0)
        torch.manual_seed(3)
        method.end_stage([batch_of(0, list(cut)) for cut in cuts])
        found.append(method.anchors[0].fisher)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_fisher_is_computed_without_dropout(true_labels):
    found = []
    for dropout in (0.0, 0.5):
        method = build(EWC, perceptron(dropout)).train()
        begin(method, 0)
        method.end_stage([batch_of(0)])
        assert method.training
        found.append(method.anchors[0].fisher)
    assert torch.equal(*found)


def test_online_ewc_sums_and_decays_the_fisher(true_labels):
    torch.manual_seed(0)
    apart = learned(stages=2)
    one = learned(stages=1)
    online = learned(stages=1, online=True, decay=0.5)
    torch.testing.assert_close(one.penalty(), online.penalty())
    online = learned(stages=2, online=True, decay=0.5)
    assert len(online.anchors) == 1
    assert torch.equal(online.anchors[0].theta, apart.anchors[1].theta)
    torch.testing.assert_close(online.anchors[0].fisher, 0.5 * apart.anchors[0].fisher + apart.anchors[1].fisher)


@pytest.mark.parametrize("online", [False, True])
def test_added_parameters_are_not_penalised(online):
    method = learned(online=online)
    before = method.penalty().item()
    new = nn.Parameter(torch.ones(3))
    method.optimizer = method.make_optimizer([*method.optimizer.parameters, new])
    begin(method, 2)
    penalty = method.penalty()
    assert penalty.item() == before
    (grad,) = torch.autograd.grad(penalty, [new])
    assert torch.equal(grad, torch.zeros(3))
    with torch.no_grad():
        new += 5.0
    assert method.penalty().item() == before


class Quadratic:
    """risk = (output - y)^2, so that the model theta * x at x = 1 is a 1-d quadratic."""

    def loss(self, output, y):
        return ((output[:, 0] - y) ** 2).mean()


def at(target):
    return DomainBatch(torch.ones(1, 1), torch.tensor([target]), (0,), (1,))


def quadratic(accumulate=1, **settings):
    model = Model(Features(inputs=1), NoNeck(1), nn.Linear(1, 1, bias=False))
    nn.init.zeros_(model.head.weight)
    optimizer_settings = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "accumulate": accumulate}
    method = SynapticIntelligence(model, task=Quadratic(), optimizer=make_optimizer(**optimizer_settings), **settings)
    begin(method, 0)
    return method


def test_omega_of_a_quadratic_by_hand():
    method = quadratic(strength=0.5, xi=0.1)
    # theta 0, target 1: gradient -2, change 0.2; theta 0.2: gradient -1.6, change 0.16
    for _ in range(2):
        assert float(method.step(at(1.0))["penalty"]) == 0.0
    path = 2 * 0.2 + 1.6 * 0.16
    assert float(method.path) == pytest.approx(path)
    method.end_stage([])
    omega = path / (0.36**2 + 0.1)
    assert float(method.omega) == pytest.approx(omega)
    begin(method, 1)
    assert float(method.start) == pytest.approx(0.36)
    assert float(method.path) == 0.0
    # theta 0.36, target 0: the first step has no penalty, the second its gradient 2 * 0.5 * omega * change
    assert float(method.step(at(0.0))["penalty"]) == 0.0
    theta = 0.36 - 0.1 * 0.72
    assert float(method.model.head.weight.detach()) == pytest.approx(theta)
    away = theta - 0.36
    assert float(method.step(at(0.0))["penalty"]) == pytest.approx(0.5 * omega * away**2)
    change = -0.1 * (2 * theta + omega * away)
    assert float(method.model.head.weight.detach()) == pytest.approx(theta + change)
    assert float(method.path) == pytest.approx(0.72 * 0.072 - 2 * theta * change)  # only the gradient of the risk
    method.end_stage([])
    assert float(method.omega) > omega


def test_accumulated_gradients_count_once():
    whole, halves = quadratic(), quadratic(accumulate=2)
    for _ in range(2):
        whole.step(at(1.0))
        halves.step(at(0.5))
        halves.step(at(1.5))
    torch.testing.assert_close(halves.path, whole.path)
    torch.testing.assert_close(halves.model.head.weight, whole.model.head.weight)


def test_importance_never_falls_below_zero():
    method = quadratic()
    method.path -= 5.0
    method.end_stage([])
    assert float(method.omega) == 0.0


def test_added_parameters_have_no_importance():
    method = quadratic()
    method.step(at(1.0))
    method.end_stage([])
    old = method.omega.clone()
    method.optimizer = method.make_optimizer([*method.optimizer.parameters, nn.Parameter(torch.ones(2))])
    begin(method, 1)
    assert torch.equal(method.omega, torch.cat([old, torch.zeros(2)]))
    method.step(at(0.0))
