"""Batches of examples and samples of rows."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import world
from holdfast.core.store import TensorStore
from holdfast.data.batches import Examples, shuffled_chunks
from holdfast.data.sampling import BINS, LEAST, nested_order, sample_sizes
from holdfast.data.splits import TEST, TRAIN
from holdfast.defaults import FEWEST_ENCODED, fewest_of_sample, first_sample

ROWS = np.array([7, 3, 11, 0, 19, 4, 5, 16])


def examples() -> Examples:
    return Examples(TensorStore(torch.arange(20.0)[:, None]), torch.zeros(20, dtype=torch.long), ())


def test_map_returns_results_in_row_order():
    for together in (None, (3, 0), (100, 4)):
        found = examples().map(lambda x: x * 2, ROWS, prediction_batch=together)
        assert found[:, 0].tolist() == [2.0 * row for row in ROWS]


def test_shuffled_chunks_have_similar_size():
    for count, size in ((10, 4), (9, 4), (257, 128), (3, 128), (1, 1)):
        chunks = list(shuffled_chunks(count, size, 0))
        assert sorted(torch.cat(chunks).tolist()) == list(range(count))
        sizes = [len(chunk) for chunk in chunks]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= 1.5 * size
    first, again, other = (torch.cat(list(shuffled_chunks(100, 10, seed))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, first.sort().values)


def test_batch_composition_depends_on_the_seed():
    def mean(x):
        return x - x.mean(0)

    first, again, other = (examples().map(mean, ROWS, prediction_batch=(3, seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.gpu
def test_a_large_set_is_copied_from_pinned_memory(monkeypatch):
    """Rows are gathered on the CPU, and copies do not wait for the GPU."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))
    data = torch.arange(4000.0)[:, None].repeat(1, 300)
    examples = Examples(TensorStore(data), torch.arange(4000), (), device="cuda")
    assert examples.store.take(torch.arange(3)).is_pinned()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = [(at, x, y) for at, x, y in examples.iter_batches(np.arange(4000))]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(batches) > 1
    for at, x, y in batches:
        assert x.is_cuda
        assert torch.equal(x.cpu(), data[at])
        assert torch.equal(y.cpu(), at)
    values = examples.map(lambda x: x.sum(1), np.arange(4000)[::-1].copy())
    assert torch.equal(values, data.sum(1).flip(0))


def test_batches_of_images_that_are_filled_give_the_same_values(monkeypatch):
    """On a GPU every batch of images has the same size."""
    images = torch.arange(600 * 12, dtype=torch.float32).view(600, 3, 2, 2)
    examples, rows = Examples(TensorStore(images), torch.arange(600), ()), np.arange(599, 0, -2)
    sizes = []

    def function(x, y):
        sizes.append((len(x), len(y)))
        return x.sum((1, 2, 3)) + y

    plain = examples.map(function, rows, targets=True)
    monkeypatch.setattr(Examples, "fills_batches", True)
    assert torch.equal(examples.map(function, rows, targets=True), plain)
    assert sizes == [(256, 256), (44, 44), (256, 256), (256, 256)]


SMALL, LARGE, OTHER = 5, 300, 100


@pytest.fixture(scope="module")
def dataset():
    """Three domains of 5, 300 and 100 rows; class 1 has 10% of the rows of the second and 40% of the third."""
    whole = world("vector", "rotation", domains=3, size=LARGE)
    rows = np.concatenate([np.flatnonzero(whole.domain == d)[:n] for d, n in enumerate((SMALL, LARGE, OTHER))])
    dataset = whole.subset(rows)
    y = np.concatenate([np.arange(n) < round(n * share) for n, share in ((SMALL, 0.4), (LARGE, 0.1), (OTHER, 0.4))])
    return replace(dataset, y=y.astype(np.int64))


def strata(dataset, rows):
    return Counter(zip(dataset.domain[rows].tolist(), dataset.y[rows].tolist(), strict=True))


def test_an_order_has_every_row_once_and_does_not_depend_on_anything_but_the_seed(dataset):
    order = nested_order(dataset)
    assert sorted(order) == list(range(len(dataset)))
    assert np.array_equal(order, nested_order(dataset))
    assert not np.array_equal(order, nested_order(dataset, seed=1))


def test_the_random_state_of_numpy_is_not_changed(dataset):
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    nested_order(dataset)
    assert np.array_equal(before, np.random.get_state()[1])


def test_small_domains_are_complete_in_every_sample(dataset):
    guaranteed = SMALL + 2 * LEAST
    order = nested_order(dataset)
    assert Counter(dataset.domain[order[:guaranteed]].tolist()) == {0: SMALL, 1: LEAST, 2: LEAST}


def test_samples_have_equal_shares_of_all_strata_within_one_row(dataset):
    order, guaranteed = nested_order(dataset), SMALL + 2 * LEAST
    total, first = (strata(dataset, order[:size]) for size in (len(dataset), guaranteed))
    for size in range(guaranteed, len(dataset) + 1):
        sample = strata(dataset, order[:size])
        least = [(sample[key] - 1) / total[key] for key in total if sample[key] > first[key]]
        most = [(sample[key] + 1) / total[key] for key in total]
        assert max(least, default=0) <= min(most)


def test_the_guaranteed_rows_of_a_domain_have_the_shares_of_its_classes(dataset):
    first = strata(dataset, nested_order(dataset)[: SMALL + 2 * LEAST])
    assert abs(first[1, 1] - 0.1 * LEAST) <= 1
    assert abs(first[2, 1] - 0.4 * LEAST) <= 1


def test_numeric_targets_are_stratified_by_quantiles(dataset):
    targets = np.random.default_rng(0).lognormal(size=len(dataset)).astype(np.float32)
    numeric = replace(dataset, targets=targets, y=np.zeros(len(dataset), dtype=np.int64))
    edges = np.quantile(targets, np.linspace(0, 1, BINS + 1)[1:-1])
    bins = np.searchsorted(edges, targets, side="right")
    order, n = nested_order(numeric), 150
    large = dataset.domain == 1
    counts = np.bincount(bins[[row for row in order[:n] if large[row]]], minlength=BINS)
    expected = np.bincount(bins[large], minlength=BINS) * counts.sum() / large.sum()
    assert np.abs(counts - expected).max() <= 2


def test_the_smallest_samples_have_rows_of_every_domain_and_split(dataset):
    order = nested_order(dataset)
    assert set(dataset.domain[order[:3]].tolist()) == {0, 1, 2}
    split = np.where(np.arange(len(dataset)) % 10 == 0, TEST, TRAIN)  # a tenth of the rows
    marked = replace(dataset, split=split)
    assert len({(dataset.domain[row], split[row]) for row in nested_order(marked)[:6].tolist()}) == 6


@settings(deadline=None)
@given(st.integers(1, 10**7), st.integers(1, 10**4))
def test_sizes_are_doubled_up_to_all_rows(total, first):
    *samples, last = sample_sizes(total, first)
    assert last == total
    assert samples == [first * 2**number for number in range(len(samples))]
    assert all(size < total / 1.5 for size in samples)
    assert first * 2 ** len(samples) >= total / 1.5


@pytest.mark.parametrize(
    ("kind", "tuned", "pretrained", "device", "tokens", "expected"),
    [
        ("table", True, False, "cpu", 0, 8000),
        ("text", False, True, "cpu", 64, 500),
        ("text", False, True, "cpu", 128, 500),
        ("text", False, True, "cpu", 192, 250),
        ("text", False, True, "cpu", 2048, 32),
        ("text", False, False, "cpu", 2048, 8000),
        ("text", False, True, "cuda", 128, 2000),
        ("text", True, True, "cuda", 128, 4000),
        ("image", False, True, "cpu", 0, 500),
        ("graph", True, False, "cpu", 0, 500),
        ("graph", True, False, "cuda", 0, 8000),
    ],
)
def test_the_first_sample_suits_what_is_computed(kind, tuned, pretrained, device, tokens, expected):
    rows = first_sample(kind, tuned=tuned, pretrained=pretrained, device=device, tokens=tokens)
    assert rows == expected
    larger = {size for size in sample_sizes(50_000, rows)[:-1] if size >= FEWEST_ENCODED}
    assert rows < FEWEST_ENCODED or larger <= set(sample_sizes(50_000, FEWEST_ENCODED))


@pytest.mark.parametrize(("spent", "expected"), [(0.0, 500), (0.19, 500), (0.2, 250), (0.35, 125), (0.9, 125)])
def test_a_late_start_halves_the_first_sample(spent, expected):
    assert first_sample("text", tuned=False, pretrained=True, device="cpu", tokens=64, spent=spent) == expected


def test_graphs_without_a_gpu_begin_with_fewer_steps():
    assert fewest_of_sample("graph", "cpu") < fewest_of_sample("graph", "cuda") == fewest_of_sample("table", "cpu")
