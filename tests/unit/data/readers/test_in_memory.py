"""In-memory examples and DataFrames as raw examples, labels and a data set."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.exceptions import DataConversionWarning
from torch.utils.data import Dataset, random_split

from holdfast.core.errors import BadInput
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.in_memory import as_dataset, as_labels, as_raw, original_labels, read_frame
from holdfast.data.readers.tables import read_table
from tests.graphs import geometric


@pytest.mark.parametrize(
    ("X", "kind"),
    [
        (["a", "b"], "text"),
        ([("a", "b"), ("c", "d")], "text"),
        (pd.Series(["a", "b"]), "text"),
        (np.asarray(["a", "b"], dtype=object), "text"),
        (pd.DataFrame({"first": ["a", "c"], "second": ["b", "d"]}), "text"),
        (np.zeros((2, 3)), "vector"),
        ([[1, 2], [3, 4]], "vector"),
        (pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}), "vector"),
        (torch.zeros(2, 3), "vector"),
        (np.zeros((2, 3, 8, 8), dtype=np.uint8), "image"),
        ([Path("a.png"), Path("b.png")], "image"),
    ],
)
def test_kinds_are_detected(X, kind):
    raw = as_raw(X)
    assert (raw.kind, len(raw)) == (kind, 2)


def ring_object(v):
    """Build a ring with the attributes of a torch-geometric Data."""
    ends = torch.arange(v)
    return SimpleNamespace(x=None, edge_index=torch.stack([ends, (ends + 1) % v]), edge_attr=None, num_nodes=v)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (csr_array(np.eye(3)), r"sparse data is not supported: .* X.toarray\(\)"),
        (np.zeros(3), "Reshape your data"),
        (np.zeros((3, 0)), "0 feature"),
        (np.zeros((2, 2), dtype=complex), "Complex data not supported"),
        (np.asarray([[1.0, np.inf]]), "row 1, feature 2 is NaN or infinite"),
        ([[1.0], [1.0, 2.0]], "examples must be all texts"),
        (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), "two columns named 'a'"),
        ([ring_object(3), "a text"], "example 2 is a str"),
        (["a text", ring_object(3)], "(?s)example 2 is namespace.*expected a text"),
        (ring_object(3), r"a list of graphs.*\[graph\]"),
    ],
)
def test_invalid_examples_are_rejected(X, message):
    with pytest.raises(BadInput, match=message):
        as_raw(X)


def test_object_among_numbers_raises_value_and_type_error():
    for kind in (BadInput, TypeError):
        with pytest.raises(kind, match=r"float.* must be"):
            as_raw(np.asarray([[{}, 1.0]], dtype=object))


class Rings(Dataset):
    """A torch Dataset like those of torch-geometric; its edge_index does not make it a graph."""

    x = edge_attr = None
    edge_index = torch.zeros(2, 0)

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return ring_object(3 + i)


def test_objects_with_edges_are_graphs():
    objects = [ring_object(3 + i) for i in range(3)]
    cells = np.empty(3, dtype=object)
    cells[:] = objects
    for X in (objects, tuple(objects), cells, pd.Series(objects), Rings(), random_split(Rings(), [3])[0]):
        raw = as_raw(X)
        assert raw.kind == "graph"
        assert sorted(graph.edges.shape[1] for graph in raw.take(np.arange(3))) == [3, 4, 5]
    mixed = as_raw([objects[0], as_raw(objects).take(np.arange(3))[1]])
    assert [len(graph.nodes) for graph in mixed.take(np.arange(2))] == [3, 4]


def test_labels_keep_their_type_and_missing_ones_are_reported():
    assert as_labels(pd.Series([True, False])) == [True, False]
    assert as_labels([1.0, 2.0]) == [1.0, 2.0]
    for missing in (None, float("nan"), float("inf"), pd.NA):
        with pytest.raises(BadInput, match="the label of example 2 is missing"):
            as_labels(["a", missing])
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        assert as_labels(np.asarray([["a"], ["b"]])) == ["a", "b"]
    names = np.asarray([10, 9, 10], dtype=np.int16)
    data = as_dataset(np.zeros((3, 1)), names, None)
    assert data.classes == ("9", "10")
    assert data.domains == ("all",)
    given = original_labels(data.classes, as_labels(names))
    assert given.dtype == np.int16
    assert given[data.y].tolist() == names.tolist()


@pytest.mark.graph
def test_heterogeneous_graphs_are_rejected():
    geometric()  # the first import warns
    from torch_geometric.data import HeteroData

    with pytest.raises(BadInput, match="not HeteroData"):
        as_raw([HeteroData(), HeteroData()])


TABLES = {
    "texts": {
        "review": ["a", "b", "c"],
        "label": ["x", "y", "x"],
        "domain": [3, 1, 1],
        "date": ["2020", "2019", "2018"],
    },
    "numbers": {"b": [1.5, 2, 3], "a": [True, False, True], "label": [1.0, 0.0, 1.0], "domain": ["p", "q", "q"]},
}


@pytest.mark.parametrize("name", TABLES)
def test_frame_equals_a_file(tmp_path, name):
    frame = pd.DataFrame(TABLES[name], index=[7, 7, 9])
    frame.to_parquet(tmp_path / "data.parquet", index=False)
    found, wanted = read_frame(frame), read_table(tmp_path / "data.parquet")
    assert found.fingerprint == wanted.fingerprint
    assert (found.classes, found.domains, found.columns) == (wanted.classes, wanted.domains, wanted.columns)
    assert read_frame(frame.astype({"label": "category"})).fingerprint == found.fingerprint


def test_columns_can_be_named():
    frame = pd.DataFrame({0: [0.5, 1.5], 1: ["x", "y"], 2: ["p", "q"]})
    found = read_frame(frame, ReadOptions(columns={"label": "1", "domain": "2", "features": "0"}))
    assert found.raw.take(np.arange(2)).tolist() == [[0.5], [1.5]]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"text": ["a"], "domain": ["x"]}), "the DataFrame has no label column: it has"),
        (pd.DataFrame({"text": ["a"], "label": ["x"], "domain": ["y"]}).iloc[:0], "has no rows"),
        (
            pd.DataFrame({"a": [1, "two"], "label": [0, 1], "domain": [0, 1]}),
            r"neither numbers nor .*column a ",
        ),
        (pd.DataFrame({"a": [1, float("inf")], "label": [0, 1], "domain": [0, 1]}), "the DataFrame: row 2, column 'a'"),
        (pd.DataFrame([["a", "b", 0, 1]], columns=["text", "text", "label", "domain"]), "two columns named 'text'"),
    ],
)
def test_invalid_frames_are_rejected(frame, message):
    with pytest.raises(BadInput, match=message):
        read_frame(frame)
