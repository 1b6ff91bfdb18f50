"""Rows of memories: a queue of the newest examples, a support set with balanced sampling, and slots per class."""

from collections import Counter, deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from holdfast.nn.memory.queue import Queue, Support, SyntheticMemory, balanced_sample


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


def offered(labels, size):
    """Yield batches of this size of rows that contain their number and label."""
    rows = torch.stack([torch.arange(len(labels)), torch.tensor(labels)], dim=1).float()
    return list(zip(rows.split(size), torch.tensor(labels).split(size), strict=True))


def test_replace():
    support = Support(4, 2)
    assert support.mask_bias().eq(-torch.inf).all()
    support.replace(torch.ones(3, 2))
    assert support.seen.tolist() == [True, True, True, False]
    support.replace(torch.full((6, 2), 2.0))
    assert support.rows.eq(2).all()
    assert support.mask_bias().eq(0).all()
    support.replace(torch.full((1, 2), 3.0))
    assert support.rows[:, 0].tolist() == [3, 0, 0, 0]
    assert support.seen.tolist() == [True, False, False, False]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_classes_take_turns(size):
    torch.manual_seed(0)
    labels = [0] * 60 + [1] * 30 + [2] * 10  # sorted by class
    result = balanced_sample(offered(labels, size), 24)
    assert Counter(result[:, 1].tolist()) == {0: 8, 1: 8, 2: 8}
    assert len(set(result[:, 0].tolist())) == 24


def test_exhausted_class_passes_its_turns_on():
    torch.manual_seed(0)
    result = balanced_sample(offered([0] * 40 + [1] * 2, 5), 12)
    assert Counter(result[:, 1].tolist()) == {0: 10, 1: 2}
    assert len(balanced_sample(offered([0, 1, 1], 2), 12)) == 3


def test_rows_of_a_class_are_sampled_uniformly():
    torch.manual_seed(1)
    seen = Counter()
    for _ in range(500):
        seen.update(int(i) for i in balanced_sample(offered([0] * 8 + [1] * 8, 3), 4)[:, 0])
    assert len(seen) == 16
    assert all(abs(count - 125) < 40 for count in seen.values()), seen  # four standard deviations


def test_initial_slots_and_labels():
    torch.manual_seed(0)
    memory = SyntheticMemory(4, 50, 30)
    assert memory.values.shape == (200, 30)
    assert float(memory.values.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert memory.labels.tolist() == [i // 50 for i in range(200)]
    assert set(memory.state_dict()) == {"values", "labels"}  # labels are saved with the weights
    assert not SyntheticMemory(4, 2, 3, start="zeros").values.any()
