"""The support set: what is kept of what is offered, and that classes take turns."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.nn.memory.queue import Support, balanced_sample


def offered(labels, size):
    """Rows that carry their number and label, in lots of this size."""
    rows = torch.stack([torch.arange(len(labels)), torch.tensor(labels)], dim=1).float()
    return list(zip(rows.split(size), torch.tensor(labels).split(size), strict=True))


def test_rows_replace_what_was_held():
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
def test_classes_take_turns_however_the_rows_come(size):
    torch.manual_seed(0)
    labels = [0] * 60 + [1] * 30 + [2] * 10  # class by class, as a sorted file has them
    found = balanced_sample(offered(labels, size), 24)
    assert Counter(found[:, 1].tolist()) == {0: 8, 1: 8, 2: 8}
    assert len(set(found[:, 0].tolist())) == 24


def test_a_class_that_runs_out_gives_its_turns_to_the_others():
    torch.manual_seed(0)
    found = balanced_sample(offered([0] * 40 + [1] * 2, 5), 12)
    assert Counter(found[:, 1].tolist()) == {0: 10, 1: 2}
    assert len(balanced_sample(offered([0, 1, 1], 2), 12)) == 3


def test_every_row_of_a_class_has_the_same_chance():
    torch.manual_seed(0)
    seen = Counter()
    for _ in range(2000):
        seen.update(int(i) for i in balanced_sample(offered([0] * 8 + [1] * 8, 3), 4)[:, 0])
    assert len(seen) == 16
    assert all(abs(count - 500) < 90 for count in seen.values()), seen  # four standard deviations


def test_it_needs_a_row():
    with pytest.raises(BadInput, match="row.*0"):
        Support(0, 3)
