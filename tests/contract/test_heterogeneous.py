"""Contract of every heterogeneous memory in the catalog, on every kind of backbone and with every method."""

import copy
from functools import partial

import pytest
import torch

from holdfast import catalog
from holdfast.core import inputs
from holdfast.core.errors import BadInput
from holdfast.core.seeds import seeded
from holdfast.core.tape import tape
from holdfast.methods.base import StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.tasks.classify import Classify
from tests.contract.scenario import assert_pure_predictions, assert_resumes
from tests.contract.sizes import LIGHT, small

MADE = {name: catalog.build_neck(name, 8, 3, options=small(name)) for name in catalog.NECKS}
NAMES = [name for name, neck in MADE.items() if isinstance(neck, HeterogeneousMemory)]
INFO = StageInfo(0, ("d0", "d1", "d2"))


def test_ablations_are_in_the_catalog():
    assert set(NAMES) == {"heterogeneous", "rma", "abd", "abd-rma", "abd-syn"}


@pytest.fixture(params=NAMES)
def neck(request):
    return request.param


def written(bench, neck):
    """Return a model with filled queue and support set."""
    model, batch = bench.model(neck), bench.batch()
    with torch.no_grad():
        z = model.encode(batch.x)
        model.neck.write(z, batch.y)
        model.neck.set_support(model.neck.read_queue(z))
    return model


def states(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("training", [True, False])
def test_read_is_pure(bench, neck, training):
    model = written(bench, neck)
    model.eval()
    model.neck.train(training)
    before, known = states(model), {name: set(vars(part)) for name, part in model.named_modules()}
    torch.manual_seed(0)
    first = model(bench.batch().x)
    torch.manual_seed(0)
    assert torch.equal(first, model(bench.batch().x))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert {name: set(vars(part)) for name, part in model.named_modules()} == known


def test_predictions_are_independent_unless_context_is_batch(bench, neck):
    model, x = written(bench, neck).eval(), bench.batch().x
    for context in ("support", "self"):
        model.neck.context = context
        with torch.no_grad():
            together = model(x)
            alone = torch.cat([model(inputs.take(x, [i])) for i in range(inputs.size(x))])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    model.neck.context = "batch"
    assert torch.allclose(model(x), together, atol=1e-4) == (not model.neck.across)


def test_weights_sum_to_one_and_are_recorded(bench, neck):
    model, x = written(bench, neck).eval(), bench.batch().x
    with tape() as side:
        with_tape = model(x)
    message = [name for name in ("heterogeneous/real", "heterogeneous/across") if side[name]]
    assert message
    for name in message:
        for each in (side[name][0], side[f"{name}/mass"][0]):
            torch.testing.assert_close(each.sum(-1), torch.ones(each.shape[:-1]))
            assert float(each.min()) >= 0
    assert torch.equal(with_tape, model(x))


def test_gradient_reaches_every_parameter(bench, neck):
    model, batch = written(bench, neck), bench.batch()
    torch.nn.functional.cross_entropy(model(batch.x), batch.y).backward()
    for name, parameter in model.neck.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


def test_copy_is_independent(bench, neck):
    model, batch = written(bench, neck).eval(), bench.batch()
    before, other = model(batch.x), copy.deepcopy(model)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    assert torch.equal(model(batch.x), before)


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
