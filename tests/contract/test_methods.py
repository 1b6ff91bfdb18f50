"""Contract of all methods: on some of many domains, and in turn on every kind of backbone, memory and companion."""

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.data.splits import Part
from holdfast.tasks.classify import Classify
from holdfast.train.evaluate import outputs, score
from tests.contract.conftest import BODIES, MORE_BODIES, Bench
from tests.contract.scenario import build_method, check_method, full_batch

KINDS = {**BODIES, **MORE_BODIES}
ENCODERS = {"hf:BERT": "hf:tiny", "vit:VIT": "vit:tiny"}
METHODS = catalog.buildable_names("methods", "classify")
OTHERS = [body for body in KINDS if body not in ("mlp", "many-domains", "gin-subgraph")]


def fits(name: str, body: str) -> bool:
    encoder, needed = KINDS[body].encoder, catalog.unwrap("methods", name)[-1][1].necks
    other_neck = KINDS[body].neck != "none" and needed and KINDS[body].neck not in needed
    return not other_neck and not catalog.incompatibility(name, ENCODERS.get(encoder, encoder))


def pairs(*, every: bool) -> list:
    """Return (method, body): many domains or the graphs a method needs, and one more kind in turn, or all."""
    chosen = []
    for number, name in enumerate(METHODS):
        first = "many-domains" if fits(name, "many-domains") else "gin-subgraph"
        others = [] if full_batch(name) else [body for body in OTHERS if fits(name, body)]
        more = others if every or not others else [others[number % len(others)]]
        chosen += [pytest.param((name, body), id=f"{name}-{body}", marks=KINDS[body].marks) for body in (first, *more)]
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate only the pairs that run: with --all every method on every kind of examples."""
    if "pair" in metafunc.fixturenames:
        metafunc.parametrize("pair", pairs(every=metafunc.config.getoption("--all")))


def general_network(method) -> dict[str, torch.Tensor]:
    return method.model.backbone.companion.second.module.state_dict()


def test_method_learns_resumes_and_predicts_purely(pair, benches):
    """A separable data set is learned; with larger backbones a few steps must lower the loss."""
    name, body = pair
    if name == "lightgbm":
        pytest.importorskip("lightgbm", reason="needs LightGBM: pip install 'holdfast[lightgbm]'")
    bench: Bench = benches[body]
    is_first = body == "many-domains"
    size, steps = (12, 50) if is_first else (6, 16)
    if full_batch(name):
        method = bench.method(name)
        assert method.solve(bench.batches(size).one_pass())
    else:
        method, predicted = check_method(lambda: bench.method(name), bench.batches(size), steps=steps, rows=range(6))
        assert predicted.shape[1] == 3
    if is_first and method.reads_inputs:
        domains = [Part(d, bench.dataset.rows_of(d)) for d in bench.domains]
        scores = score(method, bench.examples, domains, Classify(), ["accuracy"])
        assert np.mean([values["accuracy"] for values in scores.values()]) > 0.85, scores
    if body == "heterogeneous":  # forward passes of other methods write nothing
        assert bool(method.deployed.neck.queue.seen.any()) == ("hma" in name)
    if body == "gmap":
        before = general_network(bench.method(name))
        assert all(torch.equal(value, before[key]) for key, value in general_network(method).items())
        assert all(p.grad is None for p in method.model.backbone.companion.second.module.parameters())
        assert not [key for key in method.state_dict() if "companion.second" in key]


@pytest.mark.parametrize("body", BODIES)
def test_outputs_are_in_the_order_of_the_rows(body, benches):
    bench: Bench = benches[body]
    method = bench.method("erm")
    rows = np.random.default_rng(0).permutation(len(bench.dataset))
    in_order = outputs(method, bench.examples, np.arange(len(bench.dataset)))
    torch.testing.assert_close(outputs(method, bench.examples, rows), in_order[rows], rtol=1e-4, atol=1e-5)
    assert method.training


def test_a_method_with_its_own_memory_refuses_another(benches):
    with pytest.raises(BadInput, match="neck=memory"):
        build_method("mil", benches["heterogeneous"].model)
