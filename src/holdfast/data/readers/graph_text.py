"""Files of graphs to graphs and labels: the text form of one file, and the layout of several that TU's sets have.

v nodes of one graph, e edges, k attributes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs

Texts = Mapping[str, Callable[[], str]]  # a file's name -> its content


@dataclass(frozen=True, slots=True)
class Parsed:
    """Graphs in file order and the label of each as it is written."""

    graphs: list[Graphs]
    labels: list[str]


def parse_text(text: str, where: str) -> Parsed:
    """How many graphs; for each `nodes label`, then a line a node: `tag degree neighbour... attribute...`."""
    lines = _Lines(text, where)
    count = lines.whole(lines.words("the number of graphs", 1)[0])
    pieces, labels = [], []
    for index in range(count):
        v, label = lines.words(f"`nodes label` of graph {index + 1}", 2)[:2]
        pieces.append(_text_graph(lines, lines.whole(v)))
        labels.append(label)
    rest = next((number for number, words in lines.rest if words), None)
    if rest is not None:
        raise BadInput(f"{where} line {rest}: more lines than the {count} graphs that line 1 announces: mend line 1")
    return Parsed(_made(pieces, where), labels)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One graph before features are made of its tags and attributes."""

    tags: np.ndarray  # (v,)
    edges: np.ndarray  # (2, e)
    attributes: np.ndarray | None  # (v, k)


class _Lines:
    """The words of one line after another, with what to say where they are wrong."""

    def __init__(self, text: str, where: str) -> None:
        self.where, self.number = where, 0
        self.rest: Iterator[tuple[int, list[str]]] = (
            (i, line.split()) for i, line in enumerate(text.splitlines(), start=1)
        )

    def words(self, what: str, least: int) -> list[str]:
        self.number, words = next(self.rest, (self.number + 1, []))
        if len(words) < least:
            raise self.wrong(f"expected {what}, found '{' '.join(words)}'" if words else f"expected {what}, found none")
        return words

    def whole(self, word: str) -> int:
        try:
            return int(word)
        except ValueError:
            raise self.wrong(f"'{word}' is not a whole number") from None

    def wrong(self, what: str) -> BadInput:
        return BadInput(f"{self.where} line {self.number}: {what}: mend the line")


def _text_graph(lines: _Lines, v: int) -> _Piece:
    if v < 1:
        raise lines.wrong(f"a graph of {v} nodes")
    tags, starts, ends, extra = [], [], [], []
    for node in range(v):
        words = lines.words("`tag degree neighbours`", 2)
        degree = lines.whole(words[1])
        if not 0 <= degree <= len(words) - 2:
            raise lines.wrong(f"{degree} neighbours announced, {len(words) - 2} numbers given")
        tags.append(lines.whole(words[0]))
        for word in words[2 : 2 + degree]:
            if not 0 <= lines.whole(word) < v:
                raise lines.wrong(f"neighbour {word} of a graph whose nodes are 0 to {v - 1}")
            starts.append(node)
            ends.append(int(word))
        extra.append(words[2 + degree :])
        if len(extra[-1]) != len(extra[0]):
            raise lines.wrong(f"{len(extra[-1])} attributes where the node before has {len(extra[0])}")
    try:
        attributes = np.asarray(extra, dtype=np.float32) if extra[0] else None
    except ValueError:
        raise lines.wrong("an attribute of this graph is not a number") from None
    return _Piece(np.asarray(tags), np.asarray([starts, ends], dtype=np.int64), attributes)


def parse_layout(texts: Texts, prefix: str, where: str) -> Parsed:
    """TU's own layout: PREFIX_A.txt, PREFIX_graph_indicator.txt, PREFIX_graph_labels.txt, counted from 1."""

    def numbers(name: str, kind: type, columns: int | None = None) -> np.ndarray | None:
        file = f"{prefix}_{name}.txt"
        if file not in texts:
            return None
        rows = [line.replace(",", " ").split() for line in texts[file]().splitlines() if line.strip()]
        wide = columns or (len(rows[0]) if rows else 1)
        for number, row in enumerate(rows, start=1):
            if len(row) != wide:
                raise BadInput(f"{where}: {file} line {number} has {len(row)} numbers, not {wide}: mend the line")
        try:
            return np.asarray(rows, dtype=np.float64).astype(kind).reshape(len(rows), wide)
        except ValueError as error:
            raise BadInput(f"{where}: {file} holds what is not a number ({error}): mend it") from error

    edges, owner = numbers("A", np.int64, 2), numbers("graph_indicator", np.int64, 1)
    labels, tags = numbers("graph_labels", np.int64, 1), numbers("node_labels", np.int64)
    attributes = numbers("node_attributes", np.float32)
    if edges is None or owner is None or labels is None:
        lacking = [n for n, v in (("A", edges), ("graph_indicator", owner), ("graph_labels", labels)) if v is None]
        raise BadInput(f"{where} has no file {prefix}_{lacking[0]}.txt: put it beside the others")
    of = owner[:, 0] - 1
    for name, given in (("node_labels", tags), ("node_attributes", attributes)):
        if given is not None and len(given) != len(of):
            raise BadInput(f"{where}: {prefix}_{name}.txt has {len(given)} lines for {len(of)} nodes: mend it")
    sizes = np.bincount(of, minlength=len(labels)) if len(of) and of.min() >= 0 else np.zeros(0, dtype=np.int64)
    if (np.diff(of) < 0).any() or len(sizes) != len(labels) or not sizes.all():
        raise BadInput(
            f"{where}: {prefix}_graph_indicator.txt must name graphs 1 to {len(labels)} in order, each with a node"
        )
    if len(edges) and not 1 <= edges.min() <= edges.max() <= len(of):
        raise BadInput(f"{where}: {prefix}_A.txt names node {edges.max()}, there are 1 to {len(of)}: mend it")
    ends = edges.T - 1
    if (of[ends[0]] != of[ends[1]]).any():
        line = int((of[ends[0]] != of[ends[1]]).argmax()) + 1
        raise BadInput(f"{where}: {prefix}_A.txt line {line} joins nodes of two graphs: mend the line")
    starts = np.cumsum(sizes) - sizes
    order = np.argsort(of[ends[0]], kind="stable")
    cuts = np.cumsum(np.bincount(of[ends[0]], minlength=len(labels)))[:-1]
    inner = np.split((ends - starts[of[ends[0]]])[:, order], cuts, axis=1)
    pieces = []
    for start, size, own in zip(starts, sizes, inner, strict=True):
        rows = slice(start, start + size)
        first = np.zeros(int(size), dtype=np.int64) if tags is None else tags[rows, 0]
        pieces.append(_Piece(first, own, None if attributes is None else attributes[rows]))
    return Parsed(_made(pieces, where), [str(label) for label in labels[:, 0]])


def _made(pieces: Sequence[_Piece], where: str) -> list[Graphs]:
    """Tags as categories where they differ at all, with attributes as numbers; every edge both ways, none twice."""
    if not pieces:
        return []
    every = np.unique(np.concatenate([piece.tags for piece in pieces]))
    widths = {0 if piece.attributes is None else piece.attributes.shape[1] for piece in pieces}
    if len(widths) > 1:
        raise BadInput(f"{where}: some graphs have attributes and others not, or other ones: give all the same")
    found = []
    for piece in pieces:
        v = len(piece.tags)
        nodes = torch.zeros(v, 0)
        if len(every) > 1:
            nodes = torch.from_numpy(piece.tags[:, None] - min(0, int(every[0])))
        if piece.attributes is not None:
            spread = [] if len(every) == 1 else [piece.tags[:, None] == every]
            nodes = torch.from_numpy(np.concatenate([*spread, piece.attributes], axis=1).astype(np.float32))
        both = np.concatenate([piece.edges, piece.edges[::-1]], axis=1)
        kept = np.unique(both[0] * v + both[1])
        edges = torch.from_numpy(np.stack([kept // v, kept % v]))
        found.append(Graphs(nodes, edges, torch.zeros(v, dtype=torch.long), 1))
    return found
