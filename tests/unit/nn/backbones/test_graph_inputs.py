"""Input features of graphs: numbers, categories and degrees, learned from training graphs only."""

import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.nn.backbones.graph import GraphNetwork
from holdfast.nn.backbones.graph_inputs import MAX_DEGREES, Categories, GraphForm, degrees


def star(leaves: int, nodes=None, weights=None) -> Graphs:
    """Build a star graph with edges in both directions, by default without features."""
    out = torch.stack([torch.zeros(leaves, dtype=torch.long), torch.arange(1, leaves + 1)])
    edges = torch.cat([out, out.flip(0)], dim=1)
    owner = torch.zeros(leaves + 1, dtype=torch.long)
    return Graphs(torch.zeros(leaves + 1, 0) if nodes is None else nodes, edges, owner, 1, weights)


def test_degree_is_the_category_and_is_capped():
    form = GraphForm.from_examples([star(2), star(4)])
    assert (form.nodes, form.categories) == ("degree", (5,))
    assert form.prepare(star(3), signed=True).nodes.tolist() == [[3], [1], [1], [1]]
    assert form.prepare(star(9), signed=True).nodes[0].tolist() == [4]


def test_large_degrees_are_standardised():
    graphs = [star(MAX_DEGREES), star(3)]
    form = GraphForm.from_examples(graphs)
    assert form.nodes == "scaled-degree"
    assert GraphForm.from_examples([star(MAX_DEGREES - 1)]).nodes == "degree"
    seen = torch.cat([form.prepare(graph, signed=True).nodes for graph in graphs])
    assert seen.shape[1] == 1
    assert float(seen.mean()) == pytest.approx(0, abs=1e-3)
    assert float(seen.std(correction=0)) == pytest.approx(1, abs=1e-3)


def test_unseen_categories_add_nothing():
    tags = torch.tensor([[0, 3], [2, 1], [1, 0]])
    form = GraphForm.from_examples([star(2, tags)])
    assert (form.nodes, form.categories) == ("categories", (4, 5))
    new = form.prepare(star(2, torch.tensor([[7, 3], [2, 9], [-1, 0]])), signed=True).nodes
    assert new.tolist() == [[3, 3], [2, 4], [3, 0]]
    embed = form.embedding(6)
    assert isinstance(embed, Categories)
    table = embed.table.weight
    result = embed(new)
    torch.testing.assert_close(result[0], table[4 + 3])  # only the known category counts
    torch.testing.assert_close(result[1], table[2])
    whole = embed(tags)
    torch.testing.assert_close(whole[0], table[0] + table[4 + 3])


def test_edge_categories_are_one_hot():
    kinds = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]])
    form = GraphForm.from_examples([star(2, weights=kinds)])
    assert form.edge_categories == (3, 3)
    assert form.edge_width == 6
    result = form.prepare(star(2, weights=kinds + torch.tensor([0, 5])), signed=True).weights
    assert result.tolist()[:2] == [[1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1]]


def test_form_survives_json():
    for graphs in ([star(2)], [star(2, torch.zeros(3, 2).long())], [star(1, torch.zeros(2, 4))], [star(MAX_DEGREES)]):
        form = GraphForm.from_examples(graphs)
        assert GraphForm.parse(form.to_json()) == form


def test_degrees_count_edges():
    assert degrees(star(3)).tolist() == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("train", "value", "pattern"),
    [
        (star(2), star(2, torch.zeros(3, 1)), r"shape \(3, 1\), .* \(1 or more, 0\)"),
        (star(2, torch.zeros(3, 1).long()), star(2, torch.zeros(3, 1)), "float nodes"),
        (star(1, weights=torch.zeros(2, 1).long()), star(1, weights=torch.zeros(2, 1)), "float edge features"),
    ],
)
def test_graphs_of_another_form_raise(train, value, pattern):
    with pytest.raises(BadInput, match=pattern):
        GraphForm.from_examples([train]).prepare(value, signed=True)


def test_invalid_forms_raise():
    with pytest.raises(BadInput, match="integers from 0"):
        GraphForm.from_examples([star(1, torch.tensor([[-1], [0]]))])


@pytest.mark.graph
@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_network_supports_every_form_and_loads(kind, tmp_path):
    atoms, bonds = torch.tensor([[5, 0], [3, 1], [0, 0]]), torch.tensor([[0], [1], [1], [0]])
    for graph in (star(2), star(2, atoms), star(2, atoms, bonds), star(2, torch.rand(3, 4))):
        network = GraphNetwork.build(lambda graph=graph: [graph, graph], kind=kind, layers=2, hidden=8).eval()
        x = network.prepare([graph, graph]).take(torch.arange(2))
        result = network(x)
        assert result.shape == (2, 8)
        again = GraphNetwork.load(tmp_path, network.save(tmp_path)).eval()
        again.load_state_dict(network.state_dict())
        assert torch.equal(again(x), result)
        assert again.preparation_key() == network.preparation_key()
