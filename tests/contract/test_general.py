"""Every method trains a network with a general memory and does not change the general network."""

import copy

import pytest
import torch

from holdfast import catalog
from holdfast.core.seeds import seeded
from holdfast.data.batches import Examples, prepare
from holdfast.data.synthetic import world
from holdfast.methods.base import StageInfo
from tests.contract.conftest import Bench
from tests.contract.scenario import assert_pure_predictions
from tests.tiny import tiny_bert, tiny_roberta

FITTING = [
    name
    for name in catalog.buildable_names("methods", "classify")
    if not catalog.incompatibility(name, "gmap") and not catalog.unwrap("methods", name)[-1][1].load().full_batch
]


@pytest.fixture(scope="module")
def gmap(tmp_path_factory):
    domain, general = tiny_bert(tmp_path_factory.mktemp("bert")), tiny_roberta(tmp_path_factory.mktemp("roberta"))
    dataset = world("text", "none", domains=4, size=40, classes=3, seed=0)
    bench = Bench(dataset, None, "gmap", {"domain": str(domain), "general": str(general), "length": 12})
    store = prepare(dataset.raw, bench.backbone().prepare, size=None)
    bench.examples = Examples(store, torch.from_numpy(dataset.y), dataset.domains)
    return bench


def test_methods_are_listed():
    assert len(FITTING) >= 25


@pytest.mark.parametrize("name", FITTING)
def test_step_changes_only_the_domain_network(name, gmap):
    method, batch = gmap.method(name), gmap.batch()
    with seeded(0, "stage"):
        method.begin_stage(StageInfo(0, ("d0", "d1", "d2")))
        method.begin_phase(method.phases[0])
    general = method.model.backbone.companion.second.module
    before, own = copy.deepcopy(general.state_dict()), copy.deepcopy(method.model.backbone.state_dict())
    for _ in range(2):
        metrics = method.train().step(batch)
    assert all(torch.isfinite(value) for value in metrics.values())
    for key, value in general.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert all(p.grad is None for p in general.parameters())
    assert not [key for key in method.state_dict() if "companion.second" in key]
    now = method.model.backbone.state_dict()
    assert any(not torch.equal(now[key], own[key]) for key in own)
    assert_pure_predictions(method, batch.x, range(3))
