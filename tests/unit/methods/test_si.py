"""Synaptic intelligence compared with a path computed by hand and with fine-tuning on a stream."""

import pytest
import torch
from torch import nn

from holdfast.core.batch import DomainBatch
from holdfast.methods.consolidation import SynapticIntelligence
from holdfast.nn.backbones.small import Features
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from tests.unit.methods.streams import (
    begin,
    make_optimizer,
)


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
