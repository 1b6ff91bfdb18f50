"""Parse graphs from text: one file per set, or TU's layout of several files (v nodes, e edges, k attributes)."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs

MAX_NUMBERS = 1 << 26  # in one file, and as features of all nodes of a set
MAX_GRAPHS = 1_000_000  # in one set
MAX_INTEGER = 1 << 53  # larger ones are not exact as floats
_ROWS = 1 << 14  # lines that are converted at a time

Files = Mapping[str, Callable[[], Iterable[str]]]  # file name -> function that yields its lines
Parsed = tuple[list[Graphs], list[str]]  # graphs in file order, and their labels as written


@dataclass(frozen=True, slots=True)
class _GraphData:
    """One graph before its tags and attributes are converted to features."""

    tags: np.ndarray  # (v,)
    edges: np.ndarray  # (2, e)
    attributes: np.ndarray | None  # (v, k)


def parse_text(text: Iterable[str], where: str) -> Parsed:
    """Parse the number of graphs, then per graph `nodes label` and per node `tag degree neighbour... attribute...`."""
    lines = _Lines(text, where)
    count = lines.integer(lines.words("the number of graphs", 1)[0])
    if count > MAX_GRAPHS:
        raise lines.error(f"{count} graphs, above the limit {MAX_GRAPHS:,}")
    graphs, labels = [], []
    for index in range(count):
        v, label = lines.words(f"`nodes label` of graph {index + 1}", 2)[:2]
        graphs.append(_parse_graph(lines, lines.integer(v)))
        labels.append(label)
    rest = next((number for number, words in lines.rest if words), None)
    if rest is not None:
        raise BadInput(f"{where} line {rest}: more lines than the {count} graphs that line 1 declares: fix line 1")
    return _to_graphs(graphs, where), labels


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

    def error(self, fault: str) -> BadInput:
        return BadInput(f"{self.where} line {self.number}: {fault}: fix the line")


def _parse_graph(lines: _Lines, v: int) -> _GraphData:
    if v < 1:
        raise lines.error(f"a graph with {v} nodes")
    tags, starts, ends, extra, width = array("q"), array("q"), array("q"), array("d"), -1
    for node in range(v):
        words = lines.words("`tag degree neighbours`", 2)
        degree = lines.integer(words[1])
        if not 0 <= degree <= len(words) - 2:
            raise lines.error(f"{degree} neighbours declared, but {len(words) - 2} numbers follow")
        tags.append(lines.integer(words[0]))
        for word in words[2 : 2 + degree]:
            if not 0 <= lines.integer(word) < v:
                raise lines.error(f"neighbour {word} of a graph with nodes 0 to {v - 1}")
            starts.append(node)
            ends.append(int(word))
        own = words[2 + degree :]
        width = len(own) if width < 0 else width
        if len(own) != width:
            raise lines.error(f"{len(own)} attributes, but the first node has {width}")
        try:
            extra.extend(map(float, own))
        except ValueError:
            raise lines.error("an attribute of this node is not a number") from None
    attributes = _as_floats(np.asarray(extra).reshape(v, width)) if width else None
    if attributes is not None and not np.isfinite(attributes).all():
        raise lines.error("an attribute of the graph that ends here is not a finite number")
    return _GraphData(np.asarray(tags), np.stack([starts, ends]), attributes)


def _as_floats(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # callers check for inf
        return values.astype(np.float32)


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
        valid = (
            (values == np.rint(values)) & (np.abs(values) <= MAX_INTEGER) if whole else np.isfinite(_as_floats(values))
        )
        if not valid.all():
            number, row = piece[int(valid.all(axis=1).argmin())]
            expected = f"integers of at most {MAX_INTEGER}" if whole else "finite numbers"
            raise BadInput(f"{where} line {number} has '{' '.join(row)}', expected {expected}: fix the line")
        pieces.append(values.astype(np.int64) if whole else _as_floats(values))
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
    starts = np.cumsum(sizes) - sizes
    order = np.argsort(graph_of[ends[0]], kind="stable")
    cuts = np.cumsum(np.bincount(graph_of[ends[0]], minlength=len(labels)))[:-1]
    local = np.split((ends - starts[graph_of[ends[0]]])[:, order], cuts, axis=1)
    graphs = []
    for start, size, graph_edges in zip(starts, sizes, local, strict=True):
        rows = slice(start, start + size)
        graph_tags = np.zeros(int(size), dtype=np.int64) if tags is None else tags[rows, 0]
        graphs.append(_GraphData(graph_tags, graph_edges, None if attributes is None else attributes[rows]))
    return _to_graphs(graphs, where), [str(label) for label in labels[:, 0]]


def _to_graphs(graphs: Sequence[_GraphData], where: str) -> list[Graphs]:
    """Build `Graphs`: tags as categories if they differ, attributes as numbers, unique edges in both directions."""
    if not graphs:
        return []
    all_tags = np.unique(np.concatenate([graph.tags for graph in graphs]))
    count = sum(len(graph.tags) for graph in graphs)
    if any(graph.attributes is not None for graph in graphs) and count * len(all_tags) > MAX_NUMBERS:
        fault = f"{len(all_tags)} different tags of {count} nodes with attributes are too many"
        raise BadInput(f"{where}: {fault}: remove the tags or number them from 0 on")
    widths = {0 if graph.attributes is None else graph.attributes.shape[1] for graph in graphs}
    if len(widths) > 1:
        raise BadInput(f"{where}: graphs have different numbers of attributes: use the same ones for all")
    built = []
    for graph in graphs:
        v = len(graph.tags)
        nodes = torch.zeros(v, 0)
        if len(all_tags) > 1:
            nodes = torch.from_numpy(graph.tags[:, None] - min(0, int(all_tags[0])))
        if graph.attributes is not None:
            one_hot = [] if len(all_tags) == 1 else [graph.tags[:, None] == all_tags]
            nodes = torch.from_numpy(np.concatenate([*one_hot, graph.attributes], axis=1).astype(np.float32))
        both = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
        unique = np.unique(both[0] * v + both[1])
        built.append(Graphs.single(nodes, torch.from_numpy(np.stack([unique // v, unique % v]))))
    return built
