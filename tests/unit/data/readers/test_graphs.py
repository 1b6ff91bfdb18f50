"""Graph files: every format gives the same graphs, and errors name the line."""

import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.readers import graph_text
from holdfast.data.readers.graphs import as_graphs, from_data_list, holds_graphs, read_graphs
from holdfast.nn.backbones.graph_inputs import GraphForm
from tests.graphs import geometric, ring, rings_and_stars, star, text_form, write_layout, write_zip

SMALL = rings_and_stars(6)


def pairs(graph) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in graph.edges.T}


def graphs_of(dataset):
    return dataset.raw.take(np.arange(len(dataset)))


def both(edges) -> set[tuple[int, int]]:
    return {pair for a, b in edges for pair in ((a, b), (b, a))}


@pytest.fixture(params=["txt", "zip", "layout", "zip in a folder", "txt in a folder"])
def path(request, tmp_path):
    """Six graphs in every format."""
    match request.param:
        case "txt":
            (tmp_path / "small.txt").write_text(text_form(SMALL))
            return tmp_path / "small.txt"
        case "zip":
            return write_zip(tmp_path / "small.zip", SMALL, folds=True)
        case "layout":
            return write_layout(tmp_path / "small", "small", SMALL)
        case "zip in a folder":
            (tmp_path / "all").mkdir()
            write_zip(tmp_path / "all" / "small.zip", SMALL)
        case _:
            (tmp_path / "all").mkdir()
            (tmp_path / "all" / "small.txt").write_text(text_form(SMALL))
    return tmp_path / "all"


def test_every_format_gives_the_same_graphs(path):
    assert holds_graphs(path)
    found = read_graphs(path)
    assert (found.domains, found.classes) == (("small",), ("0", "1"))
    assert found.y.tolist() == [0, 1, 0, 1, 0, 1]
    for graph, (v, edges, _) in zip(graphs_of(found), SMALL, strict=True):
        assert graph.nodes.shape == (v, 0)  # a constant tag is not a feature
        assert pairs(graph) == both(edges)
        assert graph.edges.shape[1] == len(both(edges))  # no duplicates


def test_tags_are_categories_and_attributes_numbers(tmp_path):
    def tags(g, node):
        return (g + node) % 3

    found = graphs_of(read_graphs(write_zip(tmp_path / "a.zip", SMALL, tags=tags)))
    assert found[1].nodes.tolist() == [[1], [2], [0]]
    assert not found[1].nodes.is_floating_point()
    same = graphs_of(read_graphs(write_layout(tmp_path / "b", "b", SMALL, tags=tags)))
    assert all(torch.equal(a.nodes, b.nodes) for a, b in zip(found, same, strict=True))
    more = write_zip(tmp_path / "c.zip", SMALL, tags=tags, attributes=lambda g, node: (g / 2, -node))
    assert graphs_of(read_graphs(more))[1].nodes[1].tolist() == [0.0, 0.0, 1.0, 0.5, -1.0]


def test_a_folder_of_several_sets_has_a_domain_for_each(tmp_path):
    write_zip(tmp_path / "one.zip", rings_and_stars(4))
    (tmp_path / "two.txt").write_text(text_form(rings_and_stars(6)))
    found = read_graphs(tmp_path)
    assert sorted(zip(found.domains, np.bincount(found.domain).tolist(), strict=True)) == [("one", 4), ("two", 6)]
    assert found.classes == ("0", "1")
    assert found.name == tmp_path.name


def test_folder_with_images_does_not_hold_graphs(tmp_path):
    (tmp_path / "readme.txt").write_text("pictures")
    assert holds_graphs(tmp_path)
    (tmp_path / "a.png").write_bytes(b"")
    assert not holds_graphs(tmp_path)


WRONG = {
    "2\n1 0\n0 0\n": r"line 4: .*`nodes label` of graph 2",
    "1\n1 0\n0 0\n0 0\n": r"line 4: more lines than the 1 graphs",
    "1\n2 0\n0 1 1\n0 1\n": r"line 4: 1 neighbours .* 0 numbers",
    "1\n2 0\n0 1 1\n0 1 2\n": r"line 4: neighbour 2 .* 0 to 1",
    "1\n1 0\nx 0\n": r"line 3: 'x' is not an integer",
    "1\n0 0\n": r"line 2: .* 0 nodes",
    "1\n2 0\n0 0 1.5\n0 0\n": r"line 4: 0 attributes.* 1",
    "1\n1 0\n0 0 a\n": r"line 3: an attribute .*not a number",
    "2\n1 0\n0 0 1.5\n1 1\n0 0\n": r"line 5: 0 attributes",
    "many\n": r"line 1: 'many' is not an integer",
    "1\n1 0\n99999999999999999999999 0\n": r"line 3: 9+ is larger",
    "2000000\n": r"line 1: 2000000 graphs, above the limit",
    "1\n1 0\n0 0 1e300\n": r"line 3: .*not a finite number",
}


@pytest.mark.parametrize("text", WRONG)
def test_invalid_line_is_reported(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(BadInput, match=WRONG[text]):
        read_graphs(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("A", "1, 2\n1, 9\n", "node 9, expected 1 to 6"),
        ("A", "1, 2\n1, 4\n", "line 2 .*two graphs"),
        ("A", "1, 2\n1\n", "line 2 has 1 numbers, expected 2"),
        ("graph_indicator", "1\n2\n1\n2\n2\n2\n", "graphs 1 to 2 in order"),
        ("graph_labels", "1\n2\n3\n", "graphs 1 to 3 in order"),
        ("graph_labels", "a\nb\n", "graph_labels.*not a number"),
        ("graph_labels", " \n", r"graph_labels\.txt is empty"),
        ("node_labels", "1\n2\n", "has 2 lines for 6 nodes"),
        ("graph_indicator", "1\n1\n1\n2\n2\n3000000000\n", "graphs 1 to 2 in order"),
        ("graph_indicator", "1\n1\n1\n2\n2\n900000000000000000\n", "line 6 has '9.*expected integers"),
        ("graph_indicator", "1\n1\n1\n2\n2\n1e300\n", "line 6 has '1e300', expected integers"),
        ("graph_labels", "1\n\n0.5\n", "line 3 has '0.5', expected integers"),
        ("node_labels", "1\n1\n1\n2\n2\nnan\n", "line 6 has 'nan', expected integers"),
        ("node_attributes", "1\n1\n1\n2\n2\n1e300\n", "line 6 has '1e300', expected finite"),
    ],
)
def test_invalid_layout_file_is_reported(tmp_path, file, text, message):
    folder = write_layout(tmp_path / "x", "x", [(3, ring(3), 0), (3, star(3), 1)])
    (folder / f"x_{file}.txt").write_text(text)
    with pytest.raises(BadInput, match=message):
        read_graphs(folder)


def test_files_without_graphs_are_rejected(tmp_path):
    folder = write_layout(tmp_path / "x", "x", SMALL)
    (folder / "x_graph_labels.txt").unlink()
    with pytest.raises(BadInput, match=r"no file x_graph_labels\.txt"):
        read_graphs(folder)
    (tmp_path / "broken.zip").write_bytes(b"no zip")
    with pytest.raises(BadInput, match=r"broken\.zip"):
        read_graphs(tmp_path / "broken.zip")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"bytes\.txt"):
        read_graphs(tmp_path / "bytes.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no graphs"):
        read_graphs(tmp_path / "empty")


def test_text_is_read_line_by_line_with_limits(tmp_path, monkeypatch):
    def packed(name, lines):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(f"{name}.txt", lines)
        return tmp_path / f"{name}.zip"

    with pytest.raises(BadInput, match=r"bomb\.zip would unpack from 0.1 MiB to 0.1 GiB"):
        read_graphs(packed("bomb", "33000000\n" + "1 0\n" * (33 << 20)))
    with pytest.raises(BadInput, match=r"long\.txt has a line of more than 4 MiB"):
        read_graphs(packed("long", "1\n" + "1 " * (3 << 20)))
    monkeypatch.setattr(graph_text, "MAX_NUMBERS", 100)
    with pytest.raises(BadInput, match="more than 100 numbers"):
        read_graphs(packed("many", "1\n100 0\n" + "0 0\n" * 100))
    folder = write_layout(tmp_path / "x", "x", [(30, ring(30), 0), (30, star(30), 1)])
    with pytest.raises(BadInput, match=r"x_A\.txt has more than 100 numbers"):
        read_graphs(folder)
    tags = "\n".join(["1", "20 0", *(f"{i} 0 0.5" for i in range(20))])
    with pytest.raises(BadInput, match="20 different tags of 20 nodes"):
        read_graphs(packed("tags", tags))


@pytest.mark.parametrize("tag", [3_000_000_000, 2_000_000])
def test_a_large_tag_is_refused_before_an_encoder_is_built(tmp_path, tag):
    (tmp_path / "a.txt").write_text(f"2\n2 0\n0 1 1\n{tag} 1 0\n1 1\n0 0\n")
    graphs = graphs_of(read_graphs(tmp_path / "a.txt"))
    with pytest.raises(BadInput, match=f"{tag}, above the limit 1,000,000"):
        GraphForm.from_examples(graphs)


def data(v, label, *, x=None, edge_attr=None):
    """Build a ring with the attributes of a torch-geometric Data."""
    edges = torch.tensor(sorted(both(ring(v)))).T
    return SimpleNamespace(num_nodes=v, x=x, edge_index=edges, edge_attr=edge_attr, y=torch.tensor([label]))


def test_list_of_data_objects():
    found = from_data_list([data(3, 1.0), data(4, 0.0), data(5, 1.0)], domains=["a", "b", "a"])
    assert (found.classes, found.domains) == (("0", "1"), ("a", "b"))
    assert found.y.tolist() == [1, 0, 1]
    assert found.domain.tolist() == [0, 1, 0]
    assert [g.nodes.shape for g in graphs_of(found)] == [(3, 0), (4, 0), (5, 0)]
    rich = [data(3, 0, x=torch.arange(3), edge_attr=torch.rand(6)), data(3, 1, x=torch.arange(3), edge_attr=None)]
    first = graphs_of(from_data_list(rich, labels=["x", "y"]))[0]
    assert first.nodes.tolist() == [[0], [1], [2]]
    assert first.weights.shape == (6, 1)
    alone = SimpleNamespace(num_nodes=1, x=torch.rand(1, 2), edge_index=torch.zeros(2, 0, dtype=torch.long), y=None)
    alone.edge_attr = torch.zeros(0, 3)  # one atom has no bonds, which have features all the same
    assert graphs_of(from_data_list([alone], labels=["x"]))[0].weights.shape == (0, 3)


@pytest.mark.parametrize("labels", [np.array([1, 0, 1]), np.array([1, 0, 1], np.float32), torch.tensor([1, 0, 1])])
def test_labels_and_domains_may_be_arrays(labels):
    graphs = [data(v, 0) for v in (3, 4, 5)]
    found = from_data_list(graphs, labels=labels, domains=np.array(["b", "a", "b"]))
    assert (found.classes, found.domains) == (("0", "1"), ("a", "b"))
    assert found.y.tolist() == [1, 0, 1]
    assert found.domain.tolist() == [1, 0, 1]
    with pytest.raises(BadInput, match="3 labels for 2 graphs"):
        from_data_list(graphs[:2], labels=labels)


@pytest.mark.graph
def test_torch_geometric_objects():
    geometric()  # the first import warns
    from torch_geometric.data import Data

    edges = torch.tensor([[0, 1], [1, 0]])
    found = from_data_list([Data(edge_index=edges, num_nodes=2, y=torch.tensor(k)) for k in (0, 1)])
    assert pairs(graphs_of(found)[0]) == {(0, 1), (1, 0)}


def test_lists_of_other_length_are_rejected():
    with pytest.raises(BadInput, match=r"graph 0 .*label y"):
        from_data_list([SimpleNamespace(num_nodes=1, x=None, edge_index=None, edge_attr=None, y=None)])
    with pytest.raises(BadInput, match="1 domains for 2 graphs"):
        from_data_list([data(3, 0), data(3, 1)], domains=["a"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("a text", "example 2 is a str"),
        ({"num_nodes": None}, "example 2 .*x or num_nodes"),
        ({"edge_index": None, "adj_t": "sparse"}, "example 2 .*adj_t.*edge_index"),
        ({"batch": torch.tensor([0, 0, 1])}, r"example 2 is a batch of graphs: .* batch.to_data_list\(\)"),
    ],
)
def test_invalid_graph_objects_are_rejected(other, message):
    second = other if isinstance(other, str) else SimpleNamespace(**{**vars(data(3, 1)), **other})
    with pytest.raises(BadInput, match=message):
        as_graphs([data(3, 0), second])


def test_zip_whose_member_name_is_not_utf8_is_rejected(tmp_path):
    path = write_zip(tmp_path / "set.zip", rings_and_stars(4))
    content = path.read_bytes()
    header = content[:6] + b"\x00\x08" + content[8:]  # the local header announces a UTF-8 name
    path.write_bytes(header.replace(b"set/set.txt", b"set/\xaf\xaft.txt", 1))
    with pytest.raises(BadInput, match="cannot be unpacked"):
        read_graphs(path)
