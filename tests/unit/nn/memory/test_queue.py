"""The queue contains the newest examples for any batch sizes, and masks empty rows."""

from collections import deque

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from holdfast.nn.memory.queue import Queue


def examples(start: int, count: int):
    """Return numbered, distinguishable rows and their labels."""
    number = torch.arange(start, start + count)
    return torch.stack([number, -number], dim=1).float(), number % 5


@given(rows=st.integers(1, 9), sizes=st.lists(st.integers(0, 25), max_size=8))
def test_contains_the_newest_rows(rows, sizes):
    queue, newest, start = Queue(rows, 2, 5), deque(maxlen=rows), 0
    for size in sizes:
        features, labels = examples(start, size)
        queue.write(features, labels)
        newest.extend(range(start, start + size))
        start += size
    held = sorted(int(row[0]) for row, seen in zip(queue.features, queue.seen, strict=True) if seen)
    assert held == sorted(newest)
    assert int(queue.seen.sum()) == min(start, rows)
    assert int(queue.at) == start % rows
    for row, label, seen in zip(queue.features, queue.labels, queue.seen, strict=True):
        assert not seen or int(label) == int(row[0]) % 5
    assert queue.mask_bias().eq(0).equal(queue.seen)
    assert queue.mask_bias()[~queue.seen].eq(-torch.inf).all()


def test_writes_copy_without_gradient():
    queue = Queue(4, 2, 5)
    features = torch.ones(2, 2, requires_grad=True)
    queue.write(features * 2, torch.tensor([1, 2]))
    assert not queue.features.requires_grad
    with torch.no_grad():
        features.fill_(7.0)
    assert queue.features[:2].eq(2).all()


def test_noise_is_never_written():
    torch.manual_seed(0)
    queue = Queue(50, 2, 3, noise=True)
    assert bool(queue.seen.all())
    assert_close(queue.features.norm(dim=-1), torch.ones(50))
    assert queue.labels.unique().tolist() == [0, 1, 2]
    before = queue.features.clone()
    queue.write(*examples(0, 4))
    assert torch.equal(queue.features, before)
    assert int(queue.at) == 0
