"""Graphs of a store: batches equal the concatenation of single graphs, without waiting for the device."""

import numpy as np
import pytest
import torch

from holdfast.core import inputs
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.packed_graphs import PackedGraphs
from holdfast.core.store import GraphStore, join
from holdfast.data.raw import GraphList
from holdfast.nn.backbones.graph_inputs import GraphForm


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
