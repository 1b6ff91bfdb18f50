"""Graph encoders compared with dense matrices, and their errors."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from holdfast.core import inputs
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.nn.backbones.graph import GraphNetwork
from holdfast.nn.backbones.graph_inputs import GraphForm

pytestmark = pytest.mark.graph

SIZES = (4, 1, 6)
NUMBERS = GraphForm(inputs=5)
CASES = [
    ("gcn", False, 0, "mean"),
    ("gcn", True, 1, "sum"),
    ("gcn", False, 2, "mean"),
    ("gin", False, 0, "max"),
    ("gin", True, 0, "mean"),
    ("gin", True, 3, "sum"),
]


def graph(v: int, *, edges: int = 0, seed: int = 0) -> Graphs:
    """Build a graph with five features per node and about two directed edges per node, without duplicates and loops."""
    rng = torch.Generator().manual_seed(seed)
    linked = torch.rand(v, v, generator=rng) < 2 / v
    linked.fill_diagonal_(False)
    ends = linked.nonzero().T
    weights = torch.rand(ends.shape[1], edges, generator=rng) if edges else None
    return Graphs(torch.randn(v, 5, generator=rng), ends, torch.zeros(v, dtype=torch.long), 1, weights)


def built(kind: str, virtual: bool, edges: int, pooling: str) -> tuple[GraphNetwork, list[Graphs]]:
    torch.manual_seed(0)
    graphs = [graph(v, edges=edges, seed=v) for v in SIZES]
    network = GraphNetwork.build(
        lambda: graphs, kind=kind, virtual=virtual, layers=3, hidden=4, dropout=0.3, pooling=pooling
    )
    for part in network.modules():  # non-trivial statistics and start
        if isinstance(part, torch.nn.BatchNorm1d):
            part.running_mean.normal_(std=0.1)
            part.running_var.uniform_(0.5, 2.0)
    if network.hub is not None:
        torch.nn.init.normal_(network.hub.start.weight)
    return network.eval(), graphs


def by_hand(network: GraphNetwork, one: Graphs, pooling: str) -> Tensor:
    """Compute one graph with its dense adjacency, (to, from)."""
    v = len(one.nodes)
    linked = torch.zeros(v, v)
    linked[one.edges[1], one.edges[0]] = 1.0 if one.weights is None else one.weights[:, 0]
    h, state = network.embed(one.nodes), None
    if network.hub is not None:
        state = network.hub.start.weight[0]
    for i, layer in enumerate(network.layers):
        if state is not None:
            h = h + state
            if i < 2:
                state = network.hub.turns[i]((h.sum(0) + state)[None])[0]
        if network.kind == "gcn" and one.weights is not None and one.weights.shape[1] > 1:
            own, degree = layer.conv.lin(h), 1 + torch.bincount(one.edges[1], minlength=v)
            sent = (own + layer.conv.root).relu() / degree[:, None]
            for k, (a, b) in enumerate(one.edges.T):
                pattern = (own[a] + layer.conv.bond(one.weights[k])).relu() / (degree[a] * degree[b]).sqrt()
                sent[b] = sent[b] + pattern
        elif network.kind == "gcn":
            looped = linked + torch.eye(v)
            scale = looped.sum(1).rsqrt()
            sent = scale[:, None] * looped * scale @ (h @ layer.conv.lin.weight.T) + layer.conv.bias
        else:
            heard = torch.zeros_like(h)
            for k, (a, b) in enumerate(one.edges.T):
                pattern = h[a] if one.weights is None else (h[a] + layer.conv.lin(one.weights[k])).relu()
                heard[b] = heard[b] + pattern
            sent = layer.conv.nn((1 + layer.conv.eps) * h + heard)
        h = layer.norm(sent)
        h = h.relu() if i < 2 else h
    return {"mean": h.mean(0), "sum": h.sum(0), "max": h.amax(0)}[pooling]


@pytest.mark.parametrize(("kind", "virtual", "edges", "pooling"), CASES)
def test_output_equals_the_published_equation(kind, virtual, edges, pooling):
    network, graphs = built(kind, virtual, edges, pooling)
    got = network(network.prepare(graphs).take(torch.arange(3)))
    expected = torch.stack([by_hand(network, one, pooling) for one in graphs])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("virtual", [False, True])
def test_only_a_virtual_node_connects_separate_components(virtual):
    network, _ = built("gin", virtual, 0, "mean")
    hears = []
    network.pool = lambda h, *_: hears.append(h) or h
    for value in (0.0, 1.0):
        lonely = Graphs(torch.tensor([[0.0] * 5, [value] * 5]), torch.zeros(2, 0).long(), torch.zeros(2).long(), 1)
        network(lonely)
    assert torch.equal(hears[0][0], hears[1][0]) != virtual


def test_incompatible_graphs_raise():
    form, good = GraphForm(inputs=5, edges=1), graph(3, edges=1)
    network = GraphNetwork(form=form, kind="gcn", layers=1, hidden=4)
    owner = good.owner
    wrong = {
        "Graphs of 2": inputs.cat([good, good]),
        "got Tensor": good.nodes,
        r"nodes of shape \(3, 4\)": Graphs(good.nodes[:, :4], good.edges, owner, 1, good.weights),
        r"nodes of shape \(0, 5\)": Graphs(good.nodes[:0], good.edges[:, :0], owner[:0], 1, good.weights[:0]),
        "edges must be integers": Graphs(good.nodes, good.edges.float(), owner, 1, good.weights),
        "nodes 7": Graphs(good.nodes, good.edges.clone().fill_(7), owner, 1, good.weights),
        "edge features of shape none": Graphs(good.nodes, good.edges, owner, 1),
        "weights of 0 or more": Graphs(good.nodes, good.edges, owner, 1, -1 - good.weights),
    }
    for pattern, one in wrong.items():
        with pytest.raises(BadInput, match=pattern):
            network.prepare([good, one])
    with pytest.raises(BadInput, match="needs none"):
        GraphNetwork(form=NUMBERS, layers=1, hidden=4).prepare([good])
    for nothing in (list, lambda: ["a text"]):
        with pytest.raises(BadInput, match="needs training graphs"):
            GraphNetwork.build(nothing)


@pytest.mark.parametrize(("virtual", "rows"), [(True, [0]), (False, [1])])  # one graph; one node
def test_batch_of_one_raises_in_training(virtual, rows):
    network, graphs = built("gin", virtual, 0, "mean")
    x = network.prepare(graphs).take(torch.tensor(rows))
    assert network(x).shape == (1, 4)
    with pytest.raises(BadInput, match="batch"):
        network.train()(x)


def test_encoders_do_not_import_torch_geometric():
    code = (
        "import sys, torch; from holdfast.nn.backbones.graph import GraphNetwork; "
        "from holdfast.nn.backbones.graph_inputs import GraphForm; "
        "GraphNetwork(form=GraphForm(inputs=5), layers=1, hidden=4); "
        "print([name for name in ('torch_geometric', 'torch._dynamo') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
