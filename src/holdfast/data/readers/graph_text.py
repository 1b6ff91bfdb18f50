"""Parse graphs from text: one file per set, or TU's layout of several files (v nodes, e edges, k attributes)."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.store import PackedGraphs

MAX_NUMBERS = 1 << 26  # in one file, and as features of all nodes of a set
MAX_GRAPHS = 1_000_000  # in one set
MAX_INTEGER = 1 << 53  # larger ones are not exact as floats
MAX_FLOAT = float(np.finfo(np.float32).max)
_ROWS = 1 << 14  # lines that are converted at a time

Files = Mapping[str, Callable[[], Iterable[str]]]  # file name -> function that yields its lines
Parsed = tuple[PackedGraphs, list[str]]  # graphs in file order, and their labels as written


def parse_text(text: Iterable[str], where: str) -> Parsed:
    """Parse the number of graphs, then per graph `nodes label` and per node `tag degree neighbour... attribute...`."""
    lines = _Lines(text, where)
    count = lines.integer(lines.words("the number of graphs", 1)[0])
    if count > MAX_GRAPHS:
        raise lines.error(f"{count} graphs, above the limit {MAX_GRAPHS:,}")
    tags, starts, ends, numbers, width, sizes, labels = array("q"), array("q"), array("q"), array("f"), -1, [], []
    for index in range(count):
        size, label = lines.words(f"`nodes label` of graph {index + 1}", 2)[:2]
        v, first = lines.integer(size), len(tags)
        if v < 1:
            raise lines.error(f"a graph with {v} nodes")
        for node in range(first, first + v):
            words = lines.words("`tag degree neighbours`", 2)
            degree = lines.integer(words[1])
            if not 0 <= degree <= len(words) - 2:
                raise lines.error(f"{degree} neighbours declared, but {len(words) - 2} numbers follow")
            tags.append(lines.integer(words[0]))
            for word in words[2 : 2 + degree]:
                if not 0 <= lines.integer(word) < v:
                    raise lines.error(f"neighbour {word} of a graph with nodes 0 to {v - 1}")
                starts.append(node)
                ends.append(first + int(word))
            attributes = words[2 + degree :]
            width = len(attributes) if width < 0 else width
            if len(attributes) != width:
                raise lines.error(f"{len(attributes)} attributes, but the first node has {width}")
            numbers.extend(map(lines.finite, attributes))
        sizes.append(v)
        labels.append(label)
    rest = next((number for number, words in lines.rest if words), None)
    if rest is not None:
        raise BadInput(f"{where} line {rest}: more lines than the {count} graphs that line 1 declares: fix line 1")
    values = np.asarray(numbers).reshape(-1, width) if width > 0 else None
    graphs = _to_graphs(np.asarray(tags), np.stack([starts, ends]), values, np.asarray(sizes, dtype=np.int64), where)
    return graphs, labels


class _Lines:
    """The words of successive lines, with errors that name the line."""

    def __init__(self, text: Iterable[str], where: str) -> None:
        self.where, self.number, self.total = where, 0, 0
        self.rest: Iterator[tuple[int, list[str]]] = enumerate(map(str.split, text), start=1)

    def words(self, expected: str, least: int) -> list[str]:
        self.number, words = next(self.rest, (self.number + 1, []))
        if len(words) < least:
            raise self.error(f"expected {expected}, got " + (f"'{' '.join(words)}'" if words else "nothing"))
        self.total += len(words)
        _check_total(self.total, self.where)
        return words

    def integer(self, word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            raise self.error(f"'{word}' is not an integer") from None
        if abs(value) > MAX_INTEGER:
            raise self.error(f"{word} is larger than {MAX_INTEGER}")
        return value

    def finite(self, word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            raise self.error("an attribute of this node is not a number") from None
        if not abs(value) <= MAX_FLOAT:
            raise self.error("an attribute of this node is not a finite number")
        return value

    def error(self, fault: str) -> BadInput:
        return BadInput(f"{self.where} line {self.number}: {fault}: fix the line")


def _check_total(count: int, where: str) -> None:
    if count > MAX_NUMBERS:
        raise BadInput(f"{where} has more than {MAX_NUMBERS:,} numbers: split it into several sets of graphs")


def _read_numbers(lines: Iterable[str], where: str, *, columns: int | None, kind: type) -> np.ndarray:
    """Return the rows of a file of numbers, as integers or floats (n, columns); blank lines are skipped."""
    rows = ((number, line.replace(",", " ").split()) for number, line in enumerate(lines, start=1) if line.strip())
    pieces, total, width = [], 0, columns
    while piece := list(islice(rows, _ROWS)):
        width = width or len(piece[0][1])
        for number, row in piece:
            if len(row) != width:
                raise BadInput(f"{where} line {number} has {len(row)} numbers, expected {width}: fix the line")
        total += len(piece) * width
        _check_total(total, where)
        try:
            values = np.asarray([row for _, row in piece], dtype=np.float64)
        except ValueError as error:
            raise BadInput(f"{where} has a value that is not a number ({error}): fix it") from error
        whole = kind is np.int64
        valid = np.abs(values) <= (MAX_INTEGER if whole else MAX_FLOAT)
        valid &= (values == np.rint(values)) if whole else True
        if not valid.all():
            number, row = piece[int(valid.all(axis=1).argmin())]
            expected = f"integers of at most {MAX_INTEGER}" if whole else "finite numbers"
            raise BadInput(f"{where} line {number} has '{' '.join(row)}', expected {expected}: fix the line")
        pieces.append(values.astype(kind))
    return np.concatenate(pieces) if pieces else np.zeros((0, width or 1), dtype=kind)


def parse_layout(files: Files, prefix: str, where: str) -> Parsed:
    """Parse TU's layout: PREFIX_A.txt, PREFIX_graph_indicator.txt, PREFIX_graph_labels.txt, counted from 1."""

    def numbers(name: str, kind: type, columns: int | None = None) -> np.ndarray | None:
        file = f"{prefix}_{name}.txt"
        return _read_numbers(files[file](), f"{where}: {file}", columns=columns, kind=kind) if file in files else None

    edges, owner = numbers("A", np.int64, 2), numbers("graph_indicator", np.int64, 1)
    labels, tags = numbers("graph_labels", np.int64, 1), numbers("node_labels", np.int64)
    attributes = numbers("node_attributes", np.float32)
    if edges is None or owner is None or labels is None:
        missing = [n for n, v in (("A", edges), ("graph_indicator", owner), ("graph_labels", labels)) if v is None]
        raise BadInput(f"{where} has no file {prefix}_{missing[0]}.txt: put it next to the others")
    graph_of = owner[:, 0] - 1
    for name, rows in (("node_labels", tags), ("node_attributes", attributes)):
        if rows is not None and len(rows) != len(graph_of):
            raise BadInput(f"{where}: {prefix}_{name}.txt has {len(rows)} lines for {len(graph_of)} nodes: fix it")
    if not len(labels):
        raise BadInput(f"{where}: {prefix}_graph_labels.txt is empty: write the class of every graph, one per line")
    if len(labels) > MAX_GRAPHS:
        raise BadInput(f"{where} has {len(labels)} graphs, above the limit {MAX_GRAPHS:,}: split it into several sets")
    valid = len(graph_of) and 0 <= graph_of.min() <= graph_of.max() < len(labels)
    sizes = np.bincount(graph_of, minlength=len(labels)) if valid else np.zeros(0, dtype=np.int64)
    if (np.diff(graph_of) < 0).any() or len(sizes) != len(labels) or not sizes.all():
        expected = f"graphs 1 to {len(labels)} in order, each with a node"
        raise BadInput(f"{where}: {prefix}_graph_indicator.txt must list {expected}")
    if len(edges) and not 1 <= edges.min() <= edges.max() <= len(graph_of):
        raise BadInput(f"{where}: {prefix}_A.txt has node {edges.max()}, expected 1 to {len(graph_of)}: fix it")
    ends = edges.T - 1
    crossing = graph_of[ends[0]] != graph_of[ends[1]]
    if crossing.any():
        line = f"{prefix}_A.txt line {crossing.argmax() + 1}"
        raise BadInput(f"{where}: {line} connects nodes of two graphs: fix the line")
    node_tags = np.zeros(len(graph_of), dtype=np.int64) if tags is None else tags[:, 0]
    return _to_graphs(node_tags, ends, attributes, sizes, where), [str(label) for label in labels[:, 0]]


def _to_graphs(
    tags: np.ndarray, edges: np.ndarray, attributes: np.ndarray | None, sizes: np.ndarray, where: str
) -> PackedGraphs:
    """Build graphs: tags (v,) as categories if they differ, attributes (v, k) as numbers, edges in both directions.

    Edges (2, e) count the nodes of all graphs, which have `sizes` (n,) nodes; each occurs once in the result.
    """
    distinct, v = np.unique(tags), len(tags)
    nodes = np.zeros((v, 0), dtype=np.float32)
    if attributes is not None:
        if v * len(distinct) > MAX_NUMBERS:
            fault = f"{len(distinct)} different tags of {v} nodes with attributes are too many"
            raise BadInput(f"{where}: {fault}: remove the tags or number them from 0 on")
        one_hot = [] if len(distinct) == 1 else [tags[:, None] == distinct]
        nodes = np.concatenate([*one_hot, attributes], axis=1).astype(np.float32)
    elif len(distinct) > 1:
        nodes = tags[:, None] - min(0, int(distinct[0]))
    unique = np.unique(np.concatenate([edges[0] * v + edges[1], edges[1] * v + edges[0]]))
    ends, graph_of = np.stack([unique // max(1, v), unique % max(1, v)]), np.repeat(np.arange(len(sizes)), sizes)
    owner = graph_of[ends[0]]
    local, edge_counts = ends - (np.cumsum(sizes) - sizes)[owner], np.bincount(owner, minlength=len(sizes))
    node_features, edge_ends, *counts = map(torch.from_numpy, (nodes, local, sizes, edge_counts))
    return PackedGraphs.build(node_features, edge_ends, None, *counts)
