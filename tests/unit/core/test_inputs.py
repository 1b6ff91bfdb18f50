"""Tensors, tokens, graphs and ragged rows as inputs, their stores, and batches grouped by domain."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, Tokens, top_fraction
from holdfast.core.ragged import NONE, Ragged, cat_padded, strip_padding
from holdfast.core.store import GraphStore, PackedGraphs, TensorStore, TokenStore, join
from holdfast.data.raw import GraphList
from holdfast.nn.backbones.graph_inputs import GraphForm


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


def _graphs(count: int, *, weights: bool = True, first_edges: int = 0) -> list[Graphs]:
    rng = torch.Generator().manual_seed(count)
    graphs = []
    for i in range(count):
        v = int(torch.randint(1, 6, (), generator=rng))
        e = first_edges if i == 0 else int(torch.randint(0, 9, (), generator=rng))
        ends = torch.randint(0, v, (2, e), generator=rng)
        features = torch.randint(0, 4, (e, 2), generator=rng) if weights else None
        graphs.append(Graphs.single(torch.randint(0, 5, (v, 3), generator=rng), ends, features))
    return graphs


def _assert_equal(a: Graphs, b: Graphs) -> None:
    assert a.count == b.count
    for x, y in ((a.nodes, b.nodes), (a.edges, b.edges), (a.owner, b.owner), (a.weights, b.weights)):
        assert (x is None) == (y is None)
        assert x is None or y is None or (x.dtype == y.dtype and torch.equal(x, y))


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("rows", [[0], [3, 1, 1, 6], [6, 5, 4, 3, 2, 1, 0], [0, 0]])
def test_a_batch_is_the_concatenation_of_its_graphs(rows: list[int], weights: bool) -> None:
    graphs = _graphs(7, weights=weights)
    for store in (GraphStore.build(graphs), join([GraphStore.build(graphs[:3]), GraphStore.build(graphs[3:])])):
        assert store.lengths().tolist() == [len(graph.nodes) for graph in graphs]
        _assert_equal(store.take(torch.tensor(rows)), inputs.cat([graphs[i] for i in rows]))


def test_graphs_are_converted_at_once_as_one_by_one() -> None:
    graphs = _graphs(9)
    for form in (
        GraphForm.from_examples(graphs),
        GraphForm.from_examples([Graphs.single(g.nodes[:, :0], g.edges, g.weights) for g in graphs]),
    ):
        examples = (
            graphs
            if form.nodes == "categories"
            else [Graphs.single(g.nodes[:, :0], g.edges, g.weights) for g in graphs]
        )
        packed = PackedGraphs(GraphStore.build(examples))
        _assert_equal(form.prepare_all(packed, signed=True).graphs, form.prepare_all(examples, signed=True).graphs)


def test_a_bad_graph_among_many_is_named_as_before() -> None:
    graphs = _graphs(5)
    form = GraphForm.from_examples(graphs)
    outside = Graphs.single(graphs[0].nodes[:1], torch.tensor([[0], [4]]), torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(BadInput, match="edges refer to nodes 0 to 4 of a graph with 1 nodes"):
        form.prepare_all([*graphs, outside], signed=True)
    wide = Graphs.single(torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long), None)
    with pytest.raises(BadInput, match=r"a graph has nodes of shape \(2, 4\)"):
        form.prepare_all([*graphs, wide], signed=True)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_batch_is_gathered_on_the_device_without_waiting() -> None:
    graphs = _graphs(7)
    store = GraphStore.build(graphs).to("cuda")
    rows = torch.tensor([3, 1, 1, 6])
    store.take(rows)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = store.take(rows)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    _assert_equal(inputs.to(batch, "cpu"), inputs.cat([graphs[i] for i in rows.tolist()]))


@pytest.mark.parametrize("weights", [True, False])
def test_packed_graphs_equal_a_list_of_graphs(weights: bool) -> None:
    graphs = _graphs(7, weights=weights)
    sizes = (torch.tensor([len(g.nodes) for g in graphs]), torch.tensor([g.edges.shape[1] for g in graphs]))
    features = torch.cat([g.weights for g in graphs if g.weights is not None]) if weights else None
    nodes, edges = torch.cat([g.nodes for g in graphs]), torch.cat([g.edges for g in graphs], dim=1)
    packed = GraphList(PackedGraphs.build(nodes, edges, features, *sizes))
    plain = GraphList(graphs)
    assert len(packed) == len(plain) == 7
    assert plain.take(np.arange(7))[-1] is graphs[-1]
    for rows in ([0], [3, 1, 1, 6], list(range(7)), []):
        index = np.asarray(rows, dtype=np.int64)
        taken = packed.take(index)
        assert isinstance(taken, PackedGraphs)
        assert len(taken) == len(rows)
        assert packed.digest(index) == plain.digest(index)
        for a, b in zip(taken, plain.take(index), strict=True):
            _assert_equal(a, b)
    _assert_equal(packed.take(np.arange(7))[-1], graphs[-1])
    _assert_equal(packed.take(np.arange(7))[2:5][1], graphs[3])
    with pytest.raises(IndexError):
        packed.take(np.arange(7))[7]
    form = GraphForm.from_examples(plain.take(np.arange(7)))
    assert GraphForm.from_examples(packed.take(np.arange(7))) == form
    rows = np.asarray([5, 2, 3])
    first, second = (form.prepare_all(raw.take(rows), signed=True) for raw in (packed, plain))
    _assert_equal(first.graphs, second.graphs)
    assert first.edges.tolist() == second.edges.tolist()
