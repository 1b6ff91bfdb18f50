"""Rows of different lengths: taken, joined, padded and stripped; positions stay with their tokens."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.inputs import Tokens
from holdfast.core.ragged import NONE, Ragged, cat_padded, strip_padding
from holdfast.core.store import TokenStore, join

ROWS = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=6)


@given(rows=ROWS, data=st.data())
def test_take_returns_rows_in_the_requested_order(rows, data):
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8))
    taken = Ragged.build(rows).take(torch.tensor(order))
    width = max(len(rows[i]) for i in order)
    assert taken.tolist() == [rows[i] + [NONE] * (width - len(rows[i])) for i in order]
    for row, i in zip(taken, order, strict=True):
        if rows[i]:
            assert strip_padding(row[None])[0].tolist() == rows[i]


@given(first=ROWS, second=ROWS)
def test_join_has_the_rows_of_both(first, second):
    both = Ragged.join([Ragged.build(first), Ragged.build(second)])
    at = torch.arange(len(first) + len(second))
    assert torch.equal(both.take(at), Ragged.build(first + second).take(at))


def test_targets_are_padded_to_the_widest():
    assert cat_padded([torch.tensor([1, 2]), torch.tensor([3])]).tolist() == [1, 2, 3]
    wide = cat_padded([torch.tensor([[1, 2, 3]]), torch.tensor([[4], [5]])])
    assert wide.tolist() == [[1, 2, 3], [4, NONE, NONE], [5, NONE, NONE]]


def test_positions_stay_with_their_tokens():
    stores = [TokenStore.build([[7, 8, 9], [7]], pad=0, at=[[2, 0], [0]]), TokenStore.build([[5, 6]], pad=0, at=[[1]])]
    x = join(stores).take(torch.tensor([2, 0, 1]))
    assert isinstance(x, Tokens)
    assert x.at.tolist() == [[1, NONE], [2, 0], [0, NONE]]
    taken = inputs.take(x, [0, 2])
    assert taken.at.tolist() == [[1, NONE], [0, NONE]]
    ids = torch.ones(1, 2, dtype=torch.long)
    long = Tokens(ids, ids.bool(), None, torch.tensor([[1, 1, 0]]))
    assert inputs.cat([taken, long]).at.tolist() == [[1, NONE, NONE], [0, NONE, NONE], [1, 1, 0]]
    narrow = DomainBatch(taken, torch.tensor([[3], [4]]), (0,), (2,))
    wide = DomainBatch(long, torch.tensor([[5, 6, 7]]), (1,), (1,))
    assert [group.y.shape for group in DomainBatch.cat([narrow, wide]).by_domain()] == [(2, 3), (1, 3)]
