"""Contract of all methods when a step has some of the domains, and the cost of a thousand domains."""

import copy
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.seeds import generator, seeded
from holdfast.data.batches import Batches, Examples, prepare
from holdfast.data.splits import Part
from holdfast.methods.base import StageInfo
from tests.contract.conftest import Bench
from tests.contract.scenario import assert_equal_states, tensors
from tests.tables import table_world

DOMAINS, PER_STEP = 12, 4
ON_THOUSAND = ("erm", "group-dro", "mldg", "fish", "dann", "coral", "vrex", "mixup", "fishr", "mil", "hma")


def bench_of(domains: int, size: int) -> Bench:
    dataset = table_world(domains=domains, size=size, classes=3, seed=0)
    bench = Bench(dataset, None, "tabular", {})
    bench.examples = Examples(
        prepare(dataset.raw, bench.backbone().prepare), torch.from_numpy(dataset.y), dataset.domains
    )
    return bench


@pytest.fixture(scope="module")
def dozen() -> Bench:
    return bench_of(DOMAINS, 40)


def build(bench: Bench, name: str, per_step: int = PER_STEP):
    """Return a method at the start of its stage, and its batches."""
    parts = [Part(domain, bench.dataset.rows_of(domain)) for domain in bench.dataset.domains]
    method = bench.method(name)
    with seeded(0, "stage"):
        method.begin_stage(StageInfo(0, bench.dataset.domains, domains_per_step=per_step))
        method.begin_phase(method.phases[0])
    batches = Batches(bench.examples, parts, 4, generator=generator(0, "batches"), domains_per_step=per_step)
    return method.train(), batches


def methods() -> list[str]:
    names = catalog.buildable_names("methods", "classify")
    full_batch = {name for name in names if catalog.unwrap("methods", name)[-1][1].load().full_batch}
    return [name for name in names if name not in full_batch and not catalog.incompatibility(name, "tabular")]


@pytest.mark.parametrize("name", methods())
def test_every_method_trains_and_resumes_on_some_domains_per_step(name, dozen):
    method, batches = build(dozen, name)
    seen = set()
    torch.manual_seed(5)
    for _ in range(3):
        batch = next(batches)
        seen |= set(batch.domains)
        metrics = method.take_step(batch)
        assert all(torch.isfinite(value) for value in metrics.values())
    assert len(seen) == DOMAINS
    other, restored = build(dozen, name)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    restored.load_state_dict(batches.state_dict())
    for one, its_batches in ((method, batches), (other, restored)):
        torch.manual_seed(7)
        for _ in range(2):
            one.take_step(next(its_batches))
    assert_equal_states(method, other)
    method.end_phase(method.phases[0], batches.examples_per_domain(8))


def test_state_belongs_to_the_domain(dozen):
    """Weights and averages change for the domains of a batch only."""
    method, batches = build(dozen, "group-dro")
    batch = next(batches)
    before = method.q.clone()
    method.step(batch)
    ratio = (method.q / before) / (method.q / before).min()
    assert set(ratio.gt(1 + 1e-6).nonzero()[:, 0].tolist()) == set(batch.domains)
    method, batches = build(dozen, "fishr")
    batch = next(batches)
    method.step(batch)
    assert set(method.visits.nonzero()[:, 0].tolist()) == set(batch.domains)
    assert set(method.average.abs().sum(dim=1).nonzero()[:, 0].tolist()) == set(batch.domains)


def test_all_domains_in_some_order_have_the_same_state(dozen):
    """A batch with all domains, marked as drawn, gives the update of a plain batch."""
    for name in ("group-dro", "fishr", "dann"):
        (plain, batches), (marked, _) = build(dozen, name, 0), build(dozen, name, 0)
        batch = next(batches)
        for method, each in ((plain, batch), (marked, replace(batch, drawn=torch.arange(DOMAINS)))):
            torch.manual_seed(3)
            method.step(each)
        assert_equal_states(plain, marked)


@pytest.fixture(scope="module")
def sizes() -> dict[int, Bench]:
    return {domains: bench_of(domains, 20) for domains in (8, 1000)}


@pytest.mark.parametrize("name", ON_THOUSAND)
def test_a_step_of_a_thousand_domains_costs_little_more_than_that_of_eight(name, sizes):
    seconds = {}
    for domains, bench in sizes.items():
        method, batches = build(bench, name, 8)
        take = partial(lambda method, batches: method.step(next(batches)), method, batches)
        take()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            take()
            times.append(time.perf_counter() - start)
        seconds[domains] = min(times)
        held = sum(t.numel() * t.element_size() for t in tensors(method).values())
        assert held < 64 << 20
    assert seconds[1000] < 4 * seconds[8] + 0.02, seconds
    assert np.isfinite(seconds[1000])
