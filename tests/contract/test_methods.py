"""Contract of all methods, on every kind of backbone."""

import copy

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core import inputs
from holdfast.core.seeds import seeded
from holdfast.data.splits import Part
from holdfast.methods.base import StageInfo
from holdfast.protocols.evaluate import outputs, score
from holdfast.tasks.classify import Classify

INFO = StageInfo(0, ("d0", "d1", "d2"))


def tensors(method):
    return {k: v for k, v in method.state_dict().items() if isinstance(v, torch.Tensor)}


@pytest.fixture(params=catalog.buildable_names("methods", "classify"))
def make(request, bench):
    needed = catalog.unwrap("methods", request.param)[-1][1].encoders
    if catalog.incompatibility(request.param, bench.encoder) or (bench.encoder == "gin-subgraph" and not needed):
        pytest.skip("the method is for another kind of example, or does not need this encoder")
    if request.param == "lightgbm":
        pytest.importorskip("lightgbm", reason="needs LightGBM: pip install 'holdfast[lightgbm]'")

    def build(**settings):
        method = bench.method(request.param, **settings)
        with seeded(0, "stage"):
            method.begin_stage(INFO)
            method.begin_phase(method.phases[0])
        return method

    return build


def steps(method, batch, count):
    torch.manual_seed(5)
    return [method.step(batch) for _ in range(count)]


def test_predict_shape(make, bench):
    batch = bench.batch()
    assert make().eval().predict(batch.x).shape == (12, 3)


def test_step_moves_parameters_and_reports_finite_scalars(make, bench):
    method, batch = make(), bench.batch()
    before = copy.deepcopy(tensors(method))
    metrics = method.step(batch)
    assert metrics
    for value in metrics.values():
        assert value.ndim == 0
        assert not value.requires_grad
        assert torch.isfinite(value)
    assert any(not torch.equal(before[k], v) for k, v in tensors(method).items())


def test_equal_seeds_give_equal_runs(make, bench):
    batch = bench.batch()
    first, second = make(), make()
    steps(first, batch, 3), steps(second, batch, 3)
    for a, b in zip(tensors(first).values(), tensors(second).values(), strict=True):
        assert torch.equal(a, b)


def test_predict_has_no_side_effects(make, bench):
    method, batch = make(), bench.batch()
    method.step(batch)
    method.eval()
    before, state = copy.deepcopy(tensors(method)), torch.get_rng_state()
    first = method.predict(batch.x)
    assert torch.equal(first, method.predict(batch.x))
    assert torch.equal(state, torch.get_rng_state())
    for name, value in tensors(method).items():
        assert torch.equal(value, before[name]), name


def test_predict_is_independent_of_the_batch(make, bench):
    method, batch = make(), bench.batch()
    method.step(batch)
    method.eval()
    together = method.predict(batch.x)
    alone = torch.cat([method.predict(inputs.take(batch.x, [i])) for i in range(len(batch.y))])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd", "accumulate": 2, "schedule": "cosine", "clip": 1.0}])
def test_steps_after_a_state_round_trip_are_identical(make, bench, settings):
    method, batch = make(**settings), bench.batch()
    steps(method, batch, 3)
    other = make(**settings)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    steps(method, batch, 2), steps(other, batch, 2)
    for (name, a), b in zip(tensors(method).items(), tensors(other).values(), strict=True):
        assert torch.equal(a, b), name


def test_end_of_stage_keeps_predictions_finite(make, bench):
    method, batch = make(), bench.batch()
    method.step(batch)
    method.end_stage([batch])
    assert torch.isfinite(method.eval().predict(batch.x)).all()


def test_learns(make, bench):
    """A separable data set is learned; with larger backbones a few steps must lower the loss."""
    small = bench.encoder == "mlp"
    method, batches = make(), bench.batches(12 if small else 6)
    if method.full_batch:
        pytest.skip("a single step on all examples")
    method.train()
    torch.manual_seed(0)
    risks = []
    for phase in method.phases:
        method.begin_phase(phase)
        risks += [float(method.step(next(batches))["risk"]) for _ in range(80 if small else 24)]
    method.end_stage([next(batches)])
    assert np.mean(risks[-6:]) < np.mean(risks[:6])
    if small:
        domains = [Part(d, bench.dataset.rows_of(d)) for d in bench.dataset.domains[:3]]
        scores = score(method, bench.examples, domains, Classify(), ["accuracy"])
        assert np.mean([values["accuracy"] for values in scores.values()]) > 0.85, scores


def test_outputs_are_in_the_order_of_the_rows(make, bench):
    method = make()
    rows = np.random.default_rng(0).permutation(len(bench.dataset))
    in_order = outputs(method, bench.examples, np.arange(len(bench.dataset)))
    torch.testing.assert_close(outputs(method, bench.examples, rows), in_order[rows], rtol=1e-4, atol=1e-5)
    assert method.training
