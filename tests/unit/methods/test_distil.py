"""Distillation compared with numpy; the teacher is frozen and part of the state."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.core.tape import record
from holdfast.methods.distil import Distillation, divergence
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from tests.unit.methods.streams import batch_of, begin, build, perceptron


def second_stage(dropout=0.0, **settings):
    method = build(Distillation, perceptron(dropout), **settings).train()
    begin(method, 0)
    for _ in range(5):
        method.step(batch_of(0))
    method.end_stage([batch_of(0)])
    begin(method, 1)
    return method.train()


def softmax(z):
    exp = np.exp(z - z.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)


def test_divergence_equals_numpy():
    random = np.random.default_rng(0)
    teacher, student = random.standard_normal((2, 7, 4))
    p, q = softmax(teacher / 2), softmax(student / 2)
    wanted = 4 * (p * (np.log(p) - np.log(q))).sum(1).mean()
    found = divergence(torch.from_numpy(teacher), torch.from_numpy(student), 2.0)
    assert float(found) == pytest.approx(wanted)


def test_divergence_is_zero_for_equal_outputs():
    method = second_stage()
    assert float(method.step(batch_of(1))["distillation"]) == 0.0
    assert float(method.step(batch_of(1))["distillation"]) > 0.0


def test_the_loss_is_risk_plus_weighted_divergence():
    method = second_stage(weight=3.0, temperature=2.0)
    method.step(batch_of(1))
    batch = batch_of(1)
    output = method.model(batch.x)
    loss = nn.functional.cross_entropy(output, batch.y) + 3 * divergence(method.teacher(batch.x), output, 2.0)
    wanted = torch.autograd.grad(loss, method.optimizer.parameters)
    given = []
    method.optimizer.minimize = lambda total: given.extend(torch.autograd.grad(total, method.optimizer.parameters))
    method.step(batch)
    for a, b in zip(given, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_the_teacher_is_frozen_and_in_evaluation_mode():
    method = second_stage(dropout=0.5)
    assert not any(part.training for part in method.teacher.modules())
    assert not any(p.requires_grad for p in method.teacher.parameters())
    taught = {id(p) for p in method.teacher.parameters()}
    assert not taught & {id(p) for p in method.optimizer.parameters}
    before = copy.deepcopy(method.teacher.state_dict())
    for _ in range(5):
        method.step(batch_of(1))
    for name, value in method.teacher.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert method.model.training


def test_auxiliary_losses_of_the_teacher_are_ignored():
    class Noisy(NoNeck):
        def forward(self, z):
            record("loss/constant", torch.ones(()))
            return z

    model = perceptron()
    method = build(Distillation, Model(model.backbone, Noisy(32), model.head))
    begin(method, 0)
    begin(method, 1)
    given = []
    method.optimizer.minimize = given.append
    risk = method.step(batch_of(0))["risk"]
    assert float(given[0].detach()) == pytest.approx(float(risk) + 1.0)
