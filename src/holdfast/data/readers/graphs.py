"""Read graphs: a file or zip of TU's data sets, a folder with one domain per set, or torch-geometric objects."""

import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.files import open_limit
from holdfast.core.inputs import Graphs
from holdfast.data.dataset import Dataset, encode, join
from holdfast.data.raw import GraphList
from holdfast.data.readers.graph_text import Files, Parsed, parse_layout, parse_text
from holdfast.data.readers.images import SUFFIXES as IMAGE_SUFFIXES
from holdfast.data.readers.images import files_below
from holdfast.data.readers.npz import DAMAGED_ZIP, check_zip

SUFFIXES = (".zip", ".txt")
MAX_TEXT = 1 << 27  # bytes of text that any zip may unpack to
MAX_LINE = 1 << 22  # characters
_FOLDS = "10fold_idx/"  # rows of the folds of cross-validation, which are not read
_LAYOUT = "SET.txt in text form, or SET_A.txt with SET_graph_indicator.txt and SET_graph_labels.txt"

GraphSet = tuple[str, Callable[[], Parsed]]  # name, function that parses it


def holds_graphs(path: Path) -> bool:
    """Whether a path is read as graphs: a file by its suffix, a folder by such files and no images."""
    if path.is_file():
        return path.suffix.lower() in SUFFIXES
    suffixes = {file.suffix.lower() for file in files_below(path)}
    return bool(suffixes & set(SUFFIXES)) and not suffixes & set(IMAGE_SUFFIXES)


def read_graphs(path: Path) -> Dataset:
    """Read one domain per set of graphs."""
    sets = _find_sets(path)
    if not sets:
        raise BadInput(f"{path} holds no graphs: expected {_LAYOUT}, as files, in a folder or in a zip")
    datasets = []
    for name, parse in sets:
        graphs, labels = parse()
        y, classes = encode(labels)
        datasets.append(Dataset(name, GraphList(graphs), y, classes, np.zeros_like(y), (name,)))
    return replace(datasets[0] if len(datasets) == 1 else join(datasets), name=path.stem)


def _find_sets(path: Path) -> list[GraphSet]:
    """Return the sets of graphs in a file, a zip or a folder."""
    if path.is_file() and path.suffix.lower() != ".zip":
        return [(path.stem, lambda: parse_text(_read_text(path), str(path)))]
    if path.is_file():
        return _sets_in(_zip_files(path), str(path))
    below = {str(file.relative_to(path)): file for file in sorted(files_below(path))}
    texts = {name: partial(_read_text, file) for name, file in below.items() if file.suffix.lower() == ".txt"}
    zips = [part for file in below.values() if file.suffix.lower() == ".zip" for part in _find_sets(file)]
    return [*_sets_in(texts, str(path)), *zips]


def _sets_in(files: Files, where: str) -> list[GraphSet]:
    prefixes = [name.removesuffix("_A.txt") for name in files if name.endswith("_A.txt")]
    if prefixes:
        return [(_stem(prefix), partial(parse_layout, files, prefix, where)) for prefix in prefixes]
    names = [name for name in files if _FOLDS not in name and "readme" not in name.lower()]
    return [(_stem(name), lambda name=name: parse_text(files[name](), f"{where}: {name}")) for name in names]


def _stem(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".txt")


def _zip_files(path: Path) -> Files:
    """Return the text files of a zip, read on demand, without the metadata files that macOS adds."""
    check_zip(path, minimum=MAX_TEXT)

    def content(name: str) -> Iterator[str]:
        try:
            with zipfile.ZipFile(path) as opened, opened.open(name) as file:
                yield from _lines(file, f"{path}: {name}")
        except DAMAGED_ZIP as error:
            fault = f"{path}: {name} cannot be unpacked ({error}): pack it again"
            raise open_limit(error) or BadInput(fault) from error

    with zipfile.ZipFile(path) as opened:
        names = [name for name in opened.namelist() if name.endswith(".txt") and not name.startswith("__MACOSX")]
    return {name: partial(content, name) for name in sorted(names)}


def _read_text(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        yield from _lines(file, str(path))


def _lines(file: IO[bytes], where: str) -> Iterator[str]:
    """Yield the lines of a text file; only one of them is in memory."""
    try:
        with TextIOWrapper(file, encoding="utf-8") as text:
            while line := text.readline(MAX_LINE):
                if len(line) == MAX_LINE:
                    raise BadInput(f"{where} has a line of more than {MAX_LINE >> 20} MiB: expected {_LAYOUT}")
                yield line
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is not a text file ({error.reason}): expected {_LAYOUT}") from error


@runtime_checkable
class GraphObject(Protocol):
    """Attributes by which a torch-geometric Data object is recognised."""

    x: Any
    edge_index: Any
    edge_attr: Any


def as_graphs(examples: Iterable[Any]) -> list[Graphs]:
    """Convert torch-geometric objects, or `Graphs` with one graph, to `Graphs`."""
    return [_as_graph(example, number) for number, example in enumerate(examples, start=1)]


def _as_graph(example: Any, number: int) -> Graphs:
    if isinstance(example, Graphs) and example.count == 1:
        return example
    if isinstance(example, Graphs) or not isinstance(example, GraphObject):
        kind = f"a Graphs of {example.count}" if isinstance(example, Graphs) else f"a {type(example).__name__}"
        raise BadInput(f"example {number} is {kind}, expected a Graphs with one graph or a torch-geometric Data")
    graph: Any = example  # further attributes of Data are not in the protocol
    if getattr(graph, "batch", None) is not None:
        raise BadInput(f"example {number} is a batch of graphs: pass its graphs, batch.to_data_list()")
    ends, weights = graph.edge_index, graph.edge_attr
    if ends is None and getattr(graph, "adj_t", None) is not None:
        raise BadInput(f"example {number} has only adj_t for its edges: add edge_index")
    if not graph.num_nodes:
        raise BadInput(f"example {number} has no nodes or does not define their number: add x or num_nodes")
    nodes = torch.zeros(int(graph.num_nodes), 0) if graph.x is None else _as_columns(graph.x)
    ends = torch.zeros(2, 0, dtype=torch.long) if ends is None else ends.detach().cpu()
    return Graphs.single(nodes, ends, None if weights is None else _as_columns(weights))


def _as_columns(values: Tensor) -> Tensor:
    """Convert (n,) or (n, d) features on any device to (n, d) on the CPU."""
    return values.detach().cpu()[:, None].flatten(1)


def from_data_list(
    graphs: Iterable[Any], *, labels: Sequence[object] | np.ndarray | Tensor | None = None,
    domains: Sequence[object] | np.ndarray | None = None, name: str = "graphs",
) -> Dataset:  # fmt: skip
    """Build a data set from torch-geometric Data objects: x, edge_index, edge_attr and, without `labels`, y."""
    graphs = list(graphs)
    converted = as_graphs(graphs)
    for index, graph in enumerate(graphs if labels is None else ()):
        if graph.y is None or graph.y.numel() != 1:
            raise BadInput(f"graph {index} does not have exactly one label y: pass labels=[...], one per graph")
    values = [graph.y.item() for graph in graphs] if labels is None else labels
    values = values.tolist() if isinstance(values, np.ndarray | Tensor) else list(values)
    values = [int(label) if isinstance(label, float) and label.is_integer() else label for label in values]
    for what, column in (("labels", values), ("domains", domains)):
        if column is not None and len(column) != len(converted):
            raise BadInput(f"{len(column)} {what} for {len(converted)} graphs: pass one per graph")
    y, classes = encode(values)
    domain, names = (np.zeros(len(converted), dtype=np.int64), (name,)) if domains is None else encode(list(domains))
    return Dataset(name, GraphList(converted), y, classes, domain, names)
