"""Contract of every method with a heterogeneous memory."""

from functools import partial

import pytest
import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.seeds import seeded
from holdfast.methods.base import StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.tasks.classify import Classify
from tests.contract.scenario import assert_pure_predictions, assert_resumes
from tests.contract.sizes import LIGHT

INFO = StageInfo(0, ("d0", "d1", "d2"))


@pytest.fixture(params=catalog.buildable_names("methods", "classify"))
def rule(request, benches):
    """Build any method of the catalog with a heterogeneous memory."""
    bench, name = benches["mlp"], request.param
    if catalog.incompatibility(name, bench.encoder):
        pytest.skip("this method is for another kind of example")
    if catalog.unwrap("methods", name)[-1][1].load().full_batch:
        pytest.skip("this method trains a linear map only")

    def module():
        with seeded(0, "init"):
            model, optimizer = bench.model("heterogeneous"), partial(Optimizer, OptimizerSettings(lr=3e-3))
            given = LIGHT.get(name, {})
            method = catalog.build("methods", name, model, options=given, task=Classify(), optimizer=optimizer)
            method.begin_stage(INFO)
            method.begin_phase(method.phases[0])
        return method

    if catalog.unwrap("methods", name)[-1][1].necks and "hma" not in name:
        with pytest.raises(BadInput, match="neck=memory"):
            module()
        pytest.skip("this method needs another memory, ")
    return module


def test_every_method_trains_predicts_and_resumes(rule, benches):
    bench, method = benches["mlp"], rule()
    batch = bench.batch()
    method.train()
    torch.manual_seed(5)
    for _ in range(2):
        assert all(bool(torch.isfinite(value)) for value in method.step(batch).values())
    assert_resumes(method, rule(), batch)
    method.end_stage([batch])
    assert_pure_predictions(method, batch.x)
    seen = bool(method.deployed.neck.queue.seen.any())
    assert seen == (type(method).__name__ == "HMA")  # forward passes of other methods write nothing
