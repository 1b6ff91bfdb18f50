"""Every method of the catalog minimises the balance loss of experts and reports load, importance and dropped pairs."""

from dataclasses import replace

import pytest
import torch

from holdfast import catalog
from holdfast.nn.experts.graft import expert_layers
from holdfast.train.fit import train_step
from tests.contract.scenario import full_batch

NAMES = [
    name for name in catalog.buildable_names("methods", "classify")
    if not catalog.incompatibility(name, "vit:tiny") and not full_batch(name)
    and not catalog.unwrap("methods", name)[-1][1].necks
]  # fmt: skip


def routers(model) -> torch.Tensor:
    return torch.cat([layer.router.directions.detach().flatten() for layer in expert_layers(model)])


def check_metrics(metrics) -> None:
    """Check load, importance and dropped pairs of both layers."""
    for layer in (0, 1):
        assert 0 <= float(metrics[f"experts/dropped/{layer}"]) < 1
        for quantity in ("load", "importance"):
            prefix = f"experts/{quantity}/{layer}/"
            shares = [float(value) for name, value in metrics.items() if name.startswith(prefix)]
            assert len(shares) > 1
            assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert not any(name.startswith("experts/load/2") for name in metrics)


@pytest.mark.parametrize("name", NAMES)
def test_balance_loss_changes_the_routers_and_its_parts_are_reported(name, benches):
    bench = benches["tiny-vit-experts"]
    batch, changes = bench.batch(), {}
    for weight in (0.0, 5.0):
        experts = {**bench.body.neck_options, "balance": weight, "capacity": 1.0}
        weighted = replace(bench, body=replace(bench.body, neck_options=experts))
        method = weighted.method(name, optimizer="sgd", lr=0.05)
        before = routers(method.model)
        torch.manual_seed(5)
        check_metrics(train_step(method, batch))
        changes[weight] = routers(method.model) - before
    assert bool(changes[5.0].any())
    assert float((changes[5.0] - changes[0.0]).norm()) > 0.5 * float(changes[0.0].norm())


@pytest.mark.parametrize("name", ["swad(erm)", "moving-average(erm)"])
def test_averaged_weights_include_experts_and_routers(name, benches):
    bench = benches["tiny-vit-experts"]
    method, batch = bench.method(name), bench.batch()
    for _ in range(3):
        method.step(batch)
    method.on_valid(3, {"d0": 0.5}, {"d0": 1.0})
    method.end_stage([batch])
    deployed = method.deployed
    assert deployed is not method.model
    assert len(expert_layers(deployed)) == len(expert_layers(method.model)) == 2
    assert not torch.allclose(routers(deployed), routers(bench.method(name).model))
