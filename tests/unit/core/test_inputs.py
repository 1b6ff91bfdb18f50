"""Tensors, tokens, graphs and ragged rows as inputs, their stores, and batches grouped by domain."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.inputs import Graphs, Tokens, top_fraction
from holdfast.core.ragged import NONE, Ragged, cat_padded, strip_padding
from holdfast.core.store import GraphStore, TensorStore, TokenStore, join


def tokens(*lengths, types=False):
    store = TokenStore.build(
        [[10 * i + j for j in range(n)] for i, n in enumerate(lengths, 1)],
        pad=0,
        types=[[j % 2 for j in range(n)] for n in lengths] if types else None,
    )
    return store.take(torch.arange(len(lengths)))


def graph(n, value):
    nodes = torch.full((n, 2), float(value))
    edges = torch.tensor([list(range(n - 1)), list(range(1, n))], dtype=torch.long)
    return Graphs(nodes, edges, torch.zeros(n, dtype=torch.long), 1, torch.full((n - 1, 1), float(value)))


def test_tokens_are_padded_to_the_longest_text_of_the_batch():
    store = TokenStore.build([[1, 2, 3], [4], [5, 6]], pad=9, types=[[0, 0, 1], [0], [1, 1]])
    got = store.take(torch.tensor([2, 1]))
    assert got.ids.tolist() == [[5, 6], [4, 9]]
    assert got.mask.tolist() == [[True, True], [True, False]]
    assert got.types.tolist() == [[1, 1], [0, 0]]
    assert store.lengths().tolist() == [3, 1, 2]


def test_cat_pads_and_split_reverses_it():
    a, b = tokens(3, 1, types=True), tokens(5, types=True)
    both = inputs.cat([a, b])
    assert both.ids.shape == (3, 5)
    assert both.mask.sum(1).tolist() == [3, 1, 5]
    first, second = inputs.split(both, (2, 1))
    assert inputs.size(first) == 2
    assert torch.equal(second.ids, b.ids)


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), data=st.data())
@settings(max_examples=40, deadline=None)
def test_graphs_round_trip_through_cat_and_take(sizes, data):
    graphs = [graph(n, i) for i, n in enumerate(sizes)]
    rows = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=6))
    got = inputs.take(inputs.cat(graphs), rows)
    assert got.count == len(rows)
    assert got.owner.tolist() == [k for k, i in enumerate(rows) for _ in range(sizes[i])]
    assert got.nodes[:, 0].tolist() == [float(i) for i in rows for _ in range(sizes[i])]
    assert got.edges.shape[1] == sum(sizes[i] - 1 for i in rows)
    if got.edges.numel():
        assert torch.equal(got.owner[got.edges[0]], got.owner[got.edges[1]])
        assert torch.equal(got.weights[:, 0], got.nodes[got.edges[0], 0])


def test_join_concatenates_stores():
    stores = [TokenStore.build([[1], [2, 3]], pad=0), TokenStore.build([[4, 5, 6]], pad=0)]
    assert join(stores).take(torch.tensor([2, 0])).ids.tolist() == [[4, 5, 6], [1, 0, 0]]
    assert len(join([TensorStore(torch.zeros(2, 3)), TensorStore(torch.ones(1, 3))])) == 3
    assert len(join([GraphStore.build([graph(2, 0)]), GraphStore.build([graph(3, 1)])])) == 2


@pytest.fixture
def batch():
    return DomainBatch(torch.arange(6.0)[:, None], torch.arange(6), (4, 2, 7), (1, 2, 3))


def test_a_batch_splits_by_domain(batch):
    assert [p.tolist() for p in batch.split(batch.y)] == [[0], [1, 2], [3, 4, 5]]
    assert [p.domains for p in batch.by_domain()] == [(4,), (2,), (7,)]
    assert batch.positions().tolist() == [0, 1, 1, 2, 2, 2]


def test_hold_out_separates_one_domain(batch):
    rest, target = batch.hold_out(1)
    assert (rest.domains, rest.y.tolist()) == ((4, 7), [0, 3, 4, 5])
    assert (target.domains, target.y.tolist()) == ((2,), [1, 2])


def test_inconsistent_sizes_are_errors():
    with pytest.raises(ValueError, match="3 inputs, 2 targets"):
        DomainBatch(torch.zeros(3, 1), torch.zeros(2), (0,), (3,))
    with pytest.raises(ValueError, match="1 domains but 2 sizes"):
        DomainBatch(torch.zeros(2, 1), torch.zeros(2), (0,), (1, 1))


def test_top_fraction_keeps_at_least_one_node_per_graph():
    scores, owner = torch.tensor([0.1, 0.9, 0.5, 0.2, 0.7, 0.3]), torch.tensor([0, 0, 0, 1, 1, 2])
    assert top_fraction(scores, owner, 3, 0.5).tolist() == [1, 2, 4, 5]
    assert top_fraction(scores, owner, 3, 0.1).tolist() == [1, 4, 5]


def test_texts_on_a_gpu_are_padded_to_few_lengths():
    rows = [list(range(1, n + 1)) for n in (3, 17, 20, 37)]
    store = TokenStore.build(rows, pad=0, types=rows)
    wide = store.to("cuda")
    assert store.to("cpu").take(torch.tensor([0])).ids.shape == (1, 3)
    for row, width in enumerate((32, 32, 32, 37)):  # at most the longest text
        plain, padded = store.take(torch.tensor([row])), wide.take(torch.tensor([row]))
        n = plain.ids.shape[1]
        assert padded.ids.shape == padded.mask.shape == padded.types.shape == (1, width)
        assert torch.equal(padded.ids[:, :n], plain.ids)
        assert torch.equal(padded.types[:, :n], plain.types)
        assert int(padded.mask.sum()) == n
        assert not padded.ids[:, n:].any()


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
