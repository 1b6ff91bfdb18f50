"""Every rule of the catalog adds the balance loss of experts to what it goes down and tells who got how much."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from holdfast import catalog
from holdfast.core.seeds import seeded
from holdfast.methods.base import StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.experts.graft import expert_layers
from holdfast.protocols.microbatch import train_step
from holdfast.tasks.classify import Classify
from tests.contract.conftest import LIGHT

INFO = StageInfo(0, ("d0", "d1", "d2"))


@pytest.fixture(params=catalog.buildable_names("methods"))
def rule(request, benches):
    bench, name = benches["tiny-vit-experts"], request.param
    if catalog.incompatibility(name, bench.encoder):
        pytest.skip("this method is for another kind of example")
    needed = catalog.unwrap("methods", name)[-1][1].necks

    def made(weight: float, capacity: float = 0.0):
        with seeded(0, "init"):
            bench.options = {"experts": {**bench.options["experts"], "balance": weight, "capacity": capacity}}
            model, given = bench.model(needed[0] if needed else "none"), LIGHT.get(name, {})
            optimizer = partial(Optimizer, OptimizerSettings(optimizer="sgd", lr=0.05))
            method = catalog.build("methods", name, model, options=given, task=Classify(), optimizer=optimizer)
            method.begin_stage(INFO)
            method.begin_phase(method.phases[0])
        return method.train()

    return made


def routers(model) -> torch.Tensor:
    return torch.cat([layer.router.directions.detach().flatten() for layer in expert_layers(model)])


def test_the_balance_loss_moves_the_routers_under_every_rule(rule, benches):
    batch, found = benches["tiny-vit-experts"].batch(), {}
    for weight in (0.0, 5.0):
        method = rule(weight)
        before = routers(method.model)
        torch.manual_seed(5)
        method.step(batch)
        found[weight] = routers(method.model) - before
    assert bool(found[5.0].any())
    assert float((found[5.0] - found[0.0]).norm()) > 0.5 * float(found[0.0].norm())


@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_every_rule_tells_the_load_the_importance_and_what_was_dropped(rule, benches, weight):
    told = train_step(rule(weight, capacity=1.0), benches["tiny-vit-experts"].batch())
    for layer in (0, 1):
        assert 0 <= float(told[f"experts/dropped/{layer}"]) < 1
        for what in ("load", "importance"):
            shares = [float(value) for name, value in told.items() if name.startswith(f"experts/{what}/{layer}/")]
            assert len(shares) > 1
            assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert not any(name.startswith("experts/load/2") for name in told)


@pytest.mark.parametrize("name", ["swad(erm)", "moving-average(erm)"])
def test_averaged_weights_hold_experts_and_routers(name, benches):
    bench = benches["tiny-vit-experts"]
    method = bench.method(name).train()
    method.begin_stage(INFO)
    method.begin_phase("train")
    batch = bench.batch()
    for _ in range(3):
        method.step(batch)
    method.on_valid(3, {"d0": 0.5}, {"d0": 1.0})
    method.end_stage([batch])
    deployed = method.deployed
    assert deployed is not method.model
    assert len(expert_layers(deployed)) == len(expert_layers(method.model)) == 2
    fresh = bench.method(name).model
    assert not torch.allclose(routers(deployed), routers(fresh))
