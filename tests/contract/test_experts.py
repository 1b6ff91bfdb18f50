"""Every method of the catalog minimises the balance loss of experts and reports load, importance and dropped pairs."""

from functools import partial

import pytest
import torch

from holdfast import catalog
from holdfast.core.seeds import seeded
from holdfast.methods.base import StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.experts.graft import expert_layers
from holdfast.tasks.classify import Classify
from holdfast.train.fit import train_step
from tests.contract.conftest import LIGHT

INFO = StageInfo(0, ("d0", "d1", "d2"))


def trains_experts(name: str) -> bool:
    return (
        not catalog.incompatibility(name, "vit:tiny") and not catalog.unwrap("methods", name)[-1][1].load().full_batch
    )


@pytest.fixture(params=[name for name in catalog.buildable_names("methods", "classify") if trains_experts(name)])
def build(request, benches):
    bench, name = benches["tiny-vit-experts"], request.param
    needed = catalog.unwrap("methods", name)[-1][1].necks

    def build_method(weight: float):
        with seeded(0, "init"):
            bench.options = {"experts": {**bench.options["experts"], "balance": weight, "capacity": 1.0}}
            model, options = bench.model(needed[0] if needed else "none"), LIGHT.get(name, {})
            optimizer = partial(Optimizer, OptimizerSettings(optimizer="sgd", lr=0.05))
            method = catalog.build("methods", name, model, options=options, task=Classify(), optimizer=optimizer)
            method.begin_stage(INFO)
            method.begin_phase(method.phases[0])
        return method.train()

    return build_method


def routers(model) -> torch.Tensor:
    return torch.cat([layer.router.directions.detach().flatten() for layer in expert_layers(model)])


def check_metrics(metrics) -> None:
    """Check load, importance and dropped pairs of both layers."""
    for layer in (0, 1):
        assert 0 <= float(metrics[f"experts/dropped/{layer}"]) < 1
        for quantity in ("load", "importance"):
            shares = [
                float(value) for name, value in metrics.items() if name.startswith(f"experts/{quantity}/{layer}/")
            ]
            assert len(shares) > 1
            assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert not any(name.startswith("experts/load/2") for name in metrics)


def test_balance_loss_changes_the_routers_and_its_parts_are_reported(build, benches):
    batch, changes = benches["tiny-vit-experts"].batch(), {}
    for weight in (0.0, 5.0):
        method = build(weight)
        before = routers(method.model)
        torch.manual_seed(5)
        check_metrics(train_step(method, batch))
        changes[weight] = routers(method.model) - before
    assert bool(changes[5.0].any())
    assert float((changes[5.0] - changes[0.0]).norm()) > 0.5 * float(changes[0.0].norm())


@pytest.mark.parametrize("name", ["swad(erm)", "moving-average(erm)"])
def test_averaged_weights_include_experts_and_routers(name, benches):
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
