"""Contract of all methods, on every kind of backbone."""

import copy

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.seeds import seeded
from holdfast.data.splits import Part
from holdfast.methods.base import StageInfo
from holdfast.tasks.classify import Classify
from holdfast.train.evaluate import outputs, score
from tests.contract.conftest import BODIES, MARKS
from tests.contract.scenario import assert_equal_states, assert_pure_predictions, tensors

ENCODERS = {"tiny-bert": "hf:tiny", "tiny-vit-experts": "vit:tiny"}
INFO = StageInfo(0, ("d0", "d1", "d2"))
METHODS = catalog.buildable_names("methods", "classify")
OTHERS = [body for body in BODIES if body not in ("mlp", "gin-subgraph")]
ACCUMULATED = {"optimizer": "sgd", "accumulate": 2, "schedule": "cosine", "clip": 1.0}


def pairs(*, learns: bool, every: bool) -> list:
    """Return (method, body): vectors or the graphs a method needs; if it `learns` one more kind in turn, or all."""
    chosen = []
    for number, name in enumerate(METHODS):
        entry = catalog.unwrap("methods", name)[-1][1]
        if learns and entry.load().full_batch:
            continue  # a single step on all examples
        first = "gin-subgraph" if entry.encoders else "mlp"
        more = OTHERS if every else [OTHERS[number % len(OTHERS)]] if learns else []
        fitting = [body for body in (first, *more) if not catalog.incompatibility(name, ENCODERS.get(body, body))]
        chosen += [pytest.param((name, body), id=f"{name}-{body}", marks=MARKS.get(body, ())) for body in fitting]
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate only the pairs that run: with --all every method on every kind of examples."""
    if "pair" in metafunc.fixturenames:
        learns = metafunc.function is test_learns
        metafunc.parametrize("pair", pairs(learns=learns, every=metafunc.config.getoption("--all")))


@pytest.fixture
def bench(pair, benches):
    return benches[pair[1]]


@pytest.fixture
def make(pair, bench):
    if pair[0] == "lightgbm":
        pytest.importorskip("lightgbm", reason="needs LightGBM: pip install 'holdfast[lightgbm]'")

    def build(**settings):
        method = bench.method(pair[0], **settings)
        with seeded(0, "stage"):
            method.begin_stage(INFO)
            method.begin_phase(method.phases[0])
        return method

    return build


def steps(method, batch, count):
    torch.manual_seed(5)
    for _ in range(1 if method.full_batch else count):
        method.step(batch)


def test_a_step_trains_and_predictions_are_pure_and_independent_of_the_batch(make, bench):
    method, batch = make(), bench.batch()
    before = copy.deepcopy(tensors(method))
    metrics = method.step(batch)
    assert metrics
    for value in metrics.values():
        assert value.ndim == 0
        assert not value.requires_grad
        assert torch.isfinite(value)
    assert any(not torch.equal(before[k], v) for k, v in tensors(method).items())

    assert assert_pure_predictions(method, batch.x).shape == (12, 3)
    method.train().end_stage([batch])
    assert torch.isfinite(method.eval().predict(batch.x)).all()


def test_equal_seeds_and_a_state_round_trip_give_equal_steps(make, bench):
    """With another optimizer than the resumed runs of tests/property/test_resume.py."""
    batch, first, second = bench.batch(), make(**ACCUMULATED), make(**ACCUMULATED)
    steps(first, batch, 3), steps(second, batch, 3)
    assert_equal_states(first, second)
    other = make(**ACCUMULATED)
    other.load_state_dict(copy.deepcopy(first.state_dict()))
    steps(first, batch, 2), steps(other, batch, 2)
    assert_equal_states(first, other)


def test_learns(make, bench):
    """A separable data set is learned; with larger backbones a few steps must lower the loss."""
    small = bench.encoder == "mlp"
    method, batches = make(), bench.batches(12 if small else 6)
    method.train()
    torch.manual_seed(0)
    risks = []
    for phase in method.phases:
        method.begin_phase(phase)
        risks += [float(method.step(next(batches))["risk"]) for _ in range(50 if small else 16)]
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
