"""Mapping a function over many rows: results in the order of the rows, batches shuffled by the seed."""

import numpy as np
import pytest
import torch

from holdfast.core.store import TensorStore
from holdfast.data.batches import Examples, shuffled_chunks

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
