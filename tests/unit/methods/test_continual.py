"""Contract of methods for streams: the first stage, later domains, resume in a later stage, and forgetting."""

import copy

import pytest
import torch

from holdfast.methods.consolidation import EWC, SynapticIntelligence
from holdfast.methods.distil import Distillation
from holdfast.methods.replay import AGEM, Replay
from tests.unit.methods.streams import (
    assert_first_stage_is_erm,
    assert_later_domains_are_not_used,
    batch_of,
    begin,
    build,
    fine_tuned,
    forgotten,
    stream,
    tensors,
)

METHODS = [AGEM, Distillation, EWC, Replay, SynapticIntelligence]
CASES = [*((cls, {}) for cls in METHODS), (EWC, {"online": True}), (Replay, {"capacity": 30})]


@pytest.mark.parametrize("cls", METHODS)
def test_only_the_current_domain_is_used(cls):
    assert_first_stage_is_erm(cls)
    assert_later_domains_are_not_used(cls)


@pytest.mark.parametrize(("cls", "options"), CASES)
def test_resume_in_a_later_stage(cls, options):
    method, other = (build(cls, **options).train() for _ in range(2))
    begin(method, 0)
    method.step(batch_of(0))
    method.end_stage([batch_of(0)])
    begin(method, 1)
    method.step(batch_of(1))
    begin(other, 0)
    begin(other, 1)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    metrics = []
    for each in (method, other):
        torch.manual_seed(0)
        metrics.append([each.step(batch_of(1))])
        each.end_stage([batch_of(1)])
        begin(each, 2)
        metrics[-1].append(each.step(batch_of(2)))
    assert metrics[0] == metrics[1]
    for name, value in tensors(method).items():
        assert torch.equal(value, tensors(other)[name]), name


@pytest.mark.parametrize(
    ("cls", "options", "margin"),
    [
        pytest.param(AGEM, {}, 0.05, marks=pytest.mark.slow),
        pytest.param(Distillation, {}, 0.15, marks=pytest.mark.slow),
        pytest.param(EWC, {"weight": 30_000.0}, 0.15, marks=pytest.mark.slow),
        (Replay, {}, 0.2),
        (SynapticIntelligence, {"strength": 1.0}, 0.15),
    ],
)
def test_less_forgetting_than_fine_tuning(cls, options, margin):
    plain = fine_tuned()
    _, held = stream(lambda: build(cls, **options))
    assert forgotten(plain) > 0.25
    assert forgotten(held) < forgotten(plain) - margin
    if cls is Replay:
        assert held[-1].mean() > plain[-1].mean() + 0.1
