"""State per domain when a step has some of the domains, and the cost of a thousand domains."""

import time
from dataclasses import replace

import pytest
import torch

from tests.contract.conftest import Body, make_bench
from tests.contract.scenario import assert_equal_states, build_method, started, tensors


def test_state_belongs_to_the_domain(benches):
    """Weights and averages change for the domains of a batch only."""
    bench = benches["many-domains"]
    method, batch = bench.method("group-dro"), bench.batch()
    before = method.q.clone()
    method.step(batch)
    ratio = (method.q / before) / (method.q / before).min()
    assert set(ratio.gt(1 + 1e-6).nonzero()[:, 0].tolist()) == set(batch.domains)
    method = bench.method("fishr")
    method.step(batch)
    assert set(method.visits.nonzero()[:, 0].tolist()) == set(batch.domains)
    assert set(method.average.abs().sum(dim=1).nonzero()[:, 0].tolist()) == set(batch.domains)


@pytest.mark.parametrize("name", ["group-dro", "fishr", "dann"])
def test_all_domains_in_some_order_have_the_same_state(name, benches):
    """A batch with all domains, marked as drawn, gives the update of a plain batch."""
    bench = benches["mlp"]
    plain, marked = (started(build_method(name, bench.model), bench.domains) for _ in range(2))
    batch = bench.batch()
    for method, each in ((plain, batch), (marked, replace(batch, drawn=torch.arange(3)))):
        torch.manual_seed(3)
        method.step(each)
    assert_equal_states(plain, marked)


@pytest.fixture(scope="module")
def sizes():
    return {count: make_bench(Body("table", "tabular", domains=count, per_step=8), size=20) for count in (8, 1000)}


@pytest.mark.parametrize(
    "name", ["erm", "group-dro", "mldg", "fish", "dann", "coral", "vrex", "mixup", "fishr", "mil", "hma"]
)
def test_a_step_of_a_thousand_domains_costs_little_more_than_that_of_eight(name, sizes):
    seconds = {}
    for count, bench in sizes.items():
        method, batches, times = bench.method(name), bench.batches(), []
        for _ in range(5):
            start = time.process_time()
            method.step(next(batches))
            times.append(time.process_time() - start)
        seconds[count] = min(times)
        assert sum(t.numel() * t.element_size() for t in tensors(method).values()) < 64 << 20
    assert seconds[1000] < 4 * seconds[8] + 0.02, seconds
