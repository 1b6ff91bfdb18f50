"""Graphs as a data set: a file or a zip of TU's sets, a folder with one domain a file, or objects of torch-geometric.

n graphs
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.data.dataset import SPLITS, Dataset, encode, join
from holdfast.data.raw import GraphList
from holdfast.data.readers.arrays import check_zip
from holdfast.data.readers.graph_text import Parsed, Texts, parse_layout, parse_text
from holdfast.data.readers.images import SUFFIXES as IMAGES
from holdfast.data.readers.images import files_below

SUFFIXES = (".zip", ".txt")
_FOLDS = "10fold_idx/"
_LAYOUT = "a text form SET.txt, or SET_A.txt with SET_graph_indicator.txt and SET_graph_labels.txt"


def holds_graphs(path: Path) -> bool:
    """Whether a path is to be read as graphs: by its suffix, a folder by files with it and none of images."""
    if path.is_file():
        return path.suffix.lower() in SUFFIXES
    kinds = {file.suffix.lower() for file in files_below(path)}
    return bool(kinds & set(SUFFIXES)) and not kinds & set(IMAGES)


def read_graphs(path: Path, *, fold: int | None = None) -> Dataset:
    """One set is one domain; a folder of several has a domain for each. `fold` marks the rows of that test fold."""
    path = Path(path)
    parts = _sets(path)
    if not parts:
        raise BadInput(f"{path} holds no graphs: give {_LAYOUT}, as they are, in a folder or in a zip")
    found = []
    for name, texts, parse in parts:
        parsed = parse()
        y, classes = encode(parsed.labels)
        made = Dataset(name, GraphList(parsed.graphs), y, classes, np.zeros(len(y), dtype=np.int64), (name,))
        found.append(made if fold is None else replace(made, split=_fold(texts, fold, len(y), f"{path} ({name})")))
    return replace(found[0] if len(found) == 1 else join(found), name=path.stem)


def _sets(path: Path) -> list[tuple[str, Texts, Callable[[], Parsed]]]:
    """(name, files, how to parse) of each set of graphs in a file, a zip or a folder."""
    if path.is_file() and path.suffix.lower() != ".zip":
        return [(path.stem, {}, lambda: parse_text(_decoded(path.read_bytes(), str(path)), str(path)))]
    if path.is_file():
        return _inside(_zipped(path), str(path))
    below = {str(file.relative_to(path)): file for file in sorted(files_below(path))}
    texts = {
        name: partial(lambda file: _decoded(file.read_bytes(), str(file)), file)
        for name, file in below.items()
        if file.suffix.lower() == ".txt"
    }
    zips = [part for name, file in below.items() if file.suffix.lower() == ".zip" for part in _sets(file)]
    return [*_inside(texts, str(path)), *zips]


def _inside(texts: Texts, where: str) -> list[tuple[str, Texts, Callable[[], Parsed]]]:
    layouts = [name.removesuffix("_A.txt") for name in texts if name.endswith("_A.txt")]
    if layouts:
        return [(_stem(prefix), texts, partial(parse_layout, texts, prefix, where)) for prefix in layouts]
    forms = [name for name in texts if _FOLDS not in name and "readme" not in name.lower()]
    return [(_stem(name), texts, partial(_parse, texts, name, where)) for name in forms]


def _parse(texts: Texts, name: str, where: str) -> Parsed:
    return parse_text(texts[name](), f"{where}: {name}")


def _stem(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".txt")


def _zipped(path: Path) -> Texts:
    """The text files of a zip, each read when asked for; what a Mac adds is left out."""
    if not zipfile.is_zipfile(path):
        raise BadInput(f"{path} is broken or not a zip: pack it again")
    check_zip(path)

    def content(name: str) -> str:
        try:
            with zipfile.ZipFile(path) as opened:
                return _decoded(opened.read(name), f"{path}: {name}")
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
            raise BadInput(f"{path}: {name} cannot be unpacked ({error}): pack it again") from error

    with zipfile.ZipFile(path) as opened:
        names = [name for name in opened.namelist() if name.endswith(".txt") and not name.startswith("__MACOSX")]
    return {name: partial(content, name) for name in sorted(names)}


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is no text file ({error.reason}): give {_LAYOUT}") from error


def _fold(texts: Texts, fold: int, n: int, where: str) -> np.ndarray:
    """(n,) test for the rows of this fold, train for the others."""
    names = [name for name in texts if name.endswith(f"{_FOLDS}test_idx-{fold}.txt")]
    if not names:
        raise BadInput(f"{where} has no {_FOLDS}test_idx-{fold}.txt: use fold 1 to 10 of a zip that has them")
    try:
        rows = np.asarray(texts[names[0]]().split(), dtype=np.int64)
    except ValueError as error:
        raise BadInput(f"{where}: {names[0]} must hold one row number a line ({error})") from error
    if len(rows) and not 0 <= rows.min() <= rows.max() < n:
        raise BadInput(f"{where}: {names[0]} names row {rows.max()}, there are 0 to {n - 1}")
    split = np.full(n, SPLITS.index("train"), dtype=np.int64)
    split[rows] = SPLITS.index("test")
    return split


@runtime_checkable
class GraphObject(Protocol):
    """What tells an object of torch-geometric, a Data, from other examples."""

    x: Any
    edge_index: Any
    edge_attr: Any


def as_graphs(examples: Iterable[Any]) -> list[Graphs]:
    """Objects of torch-geometric, or Graphs of one graph each, as Graphs."""
    return [_one(example, number) for number, example in enumerate(examples, start=1)]


def _one(example: Any, number: int) -> Graphs:
    if isinstance(example, Graphs) and example.count == 1:
        return example
    if isinstance(example, Graphs) or not isinstance(example, GraphObject):
        found = f"a Graphs of {example.count}" if isinstance(example, Graphs) else f"a {type(example).__name__}"
        raise BadInput(
            f"example {number} is {found}: examples are graphs, so each must be a Graphs of one graph or a Data of "
            "torch-geometric"
        )
    graph: Any = example  # a Data has more than tells it apart, some of it by name alone
    if getattr(graph, "batch", None) is not None:
        raise BadInput(f"example {number} is a batch of graphs: give its graphs one by one, batch.to_data_list()")
    ends, weights = graph.edge_index, graph.edge_attr
    if ends is None and getattr(graph, "adj_t", None) is not None:
        raise BadInput(f"example {number} has its edges as adj_t alone: keep edge_index too")
    if not graph.num_nodes:
        raise BadInput(f"example {number} has no nodes or does not say how many: give it x or num_nodes")
    nodes = torch.zeros(int(graph.num_nodes), 0) if graph.x is None else _columns(graph.x)
    ends = torch.zeros(2, 0, dtype=torch.long) if ends is None else ends.detach().cpu()
    owner = torch.zeros(len(nodes), dtype=torch.long)
    return Graphs(nodes, ends, owner, 1, None if weights is None else _columns(weights))


def _columns(values: Tensor) -> Tensor:
    """(n, d) of features that may come as (n,), from any device."""
    return values.detach().cpu()[:, None].flatten(1)


def from_data_list(
    graphs: Iterable[Any],
    *,
    labels: Sequence[object] | np.ndarray | Tensor | None = None,
    domains: Sequence[object] | np.ndarray | None = None,
    name: str = "graphs",
) -> Dataset:
    """A data set of torch-geometric's Data objects: x, edge_index, edge_attr and, unless labels are given, y."""
    graphs = list(graphs)
    found = as_graphs(graphs)
    given = _own_labels(graphs) if labels is None else labels
    given = given.tolist() if isinstance(given, np.ndarray | Tensor) else list(given)
    written = [int(label) if isinstance(label, float) and label.is_integer() else label for label in given]
    for what, told in (("labels", written), ("domains", domains)):
        if told is not None and len(told) != len(found):
            raise BadInput(f"{len(told)} {what} for {len(found)} graphs: give one a graph")
    y, classes = encode(written)
    domain, names = (np.zeros(len(found), dtype=np.int64), (name,)) if domains is None else encode(list(domains))
    return Dataset(name, GraphList(found), y, classes, domain, names)


def _own_labels(graphs: Sequence[Any]) -> list[object]:
    for index, graph in enumerate(graphs):
        if graph.y is None or graph.y.numel() != 1:
            raise BadInput(f"graph {index} has not one label y: give labels=[...], one a graph")
    return [graph.y.item() for graph in graphs]
