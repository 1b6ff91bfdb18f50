"""Support set and balanced sampling."""

from collections import Counter

import pytest
import torch

from holdfast.nn.memory.queue import Support, balanced_sample


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
