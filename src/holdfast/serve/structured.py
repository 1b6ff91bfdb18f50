"""Examples with a form of their own: words to be tagged, a question about a text, graphs.

v nodes of a graph, e edges, k numbers of each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.core.annotated import Question
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.data.columns import Finder
from holdfast.data.molecules import molecules
from holdfast.serve.limits import TooLarge

WHERE = "the request"
PARTS = {"sentence": ("tokens",), "question": ("question", "context")}
GRAPH = '{"nodes": [[...], ...], "edges": [[from, to], ...]}'

Found = tuple[list[Any], list[str] | None]  # the examples, and their ids where they have some


def sentences(given: Sequence[Any], columns: Mapping[str, str] | None) -> Found:
    """Words of each example: a list of them, a text with blanks between, or an object with such a column."""
    if not isinstance(given[0], dict):
        return [_words(number, each) for number, each in enumerate(given, 1)], None
    names = _names(given)
    found = Finder(WHERE, names, columns)
    column = found.role("tokens") or found.role("text")
    if column is None:
        raise found.missing("tokens")
    return [_words(i, each.get(column)) for i, each in enumerate(given, 1)], _ids(given, found)


def questions(given: Sequence[Any], columns: Mapping[str, str] | None) -> Found:
    """A list of a question and its text, or an object with both."""
    if not isinstance(given[0], dict):
        return [_question(number, each) for number, each in enumerate(given, 1)], None
    names = _names(given)
    found = Finder(WHERE, names, columns)
    roles = [found.role(role) for role in PARTS["question"]]
    for role, column in zip(PARTS["question"], roles, strict=True):
        if column is None:
            raise found.missing(role)
    return [_question(i, [each.get(c) for c in roles]) for i, each in enumerate(given, 1)], _ids(given, found)


def graphs(given: Sequence[Any], most: int) -> Found:
    """Objects of nodes and edges, with ids or without, or molecules written as SMILES; `most` nodes and edges."""
    made = []
    for number, each in enumerate(given, 1):
        if isinstance(each, str):
            _few(number, len(each), most)
            made += molecules([_text(number, each)], WHERE, rows=[number])
        elif isinstance(each, dict) and {"nodes", "edges"} <= set(each) <= {"nodes", "edges", "weights", "id"}:
            made.append(_graph(number, each, most))
        else:
            raise BadInput(f"example {number} is no graph: send {GRAPH}, with weights where edges have them, or SMILES")
    ids = [each.get("id") if isinstance(each, dict) else None for each in given]
    return made, [_id(i, each) for i, each in enumerate(ids, 1)] if any(each is not None for each in ids) else None


def _names(given: Sequence[Any]) -> list[str]:
    for number, each in enumerate(given, 1):
        if not isinstance(each, dict):
            raise BadInput(f"example {number} is no object with columns as the first is: mend it")
    return list(dict.fromkeys(name for each in given for name in each))


def _ids(given: Sequence[Any], found: Finder) -> list[str] | None:
    column = found.role("id")
    return None if column is None else [_id(i, each.get(column)) for i, each in enumerate(given, 1)]


def _id(number: int, value: Any) -> str:
    if value is not None and (not isinstance(value, str | int) or isinstance(value, bool)):
        raise BadInput(f"the id of example {number} is no text and no whole number: mend it")
    return _text(number, "" if value is None else str(value), blank=True)


def _words(number: int, value: Any) -> list[str]:
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise BadInput(f"example {number} has no words: send a text or a list of words")
    return [_text(number, word) for word in words]


def _question(number: int, value: Any) -> Question:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(part, str) for part in value):
        raise BadInput(f"example {number} is no question with a text: send [question, text] or an object with both")
    question, context = (_text(number, part) for part in value)
    return Question(context, question)


def _text(number: int, text: str, *, blank: bool = False) -> str:
    if not blank and not text.strip():
        raise BadInput(f"example {number} has a blank text or word: fill it in or take it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"example {number} holds half a character: mend its encoding") from error
    return text


def _graph(number: int, given: Mapping[str, Any], most: int) -> Graphs:
    nodes, edges, weights = given["nodes"], given["edges"], given.get("weights")
    if isinstance(nodes, int) and not isinstance(nodes, bool):
        _few(number, nodes, most)
        nodes = [[]] * max(0, nodes)
    made = {name: _rows(number, name, rows, most) for name, rows in (("nodes", nodes), ("edges", edges))}
    ends = made["edges"].reshape(-1, 2) if not len(edges) else made["edges"]
    if ends.shape[1] != 2 or ends.is_floating_point():
        raise BadInput(f"example {number} has an edge that is no pair of whole numbers: send {GRAPH}")
    return Graphs(
        nodes=made["nodes"],
        edges=ends.T.contiguous(),
        owner=torch.zeros(len(made["nodes"]), dtype=torch.long),
        count=1,
        weights=None if weights is None else _rows(number, "weights", weights, most),
    )


def _rows(number: int, name: str, rows: Any, most: int) -> Tensor:
    """(v or e, k) whole numbers where all are, and else numbers of 32 bits."""
    wrong = f"example {number} has {name} that are no list of equally long lists of numbers: send {GRAPH}"
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows) or len(set(map(len, rows))) > 1:
        raise BadInput(wrong)
    _few(number, len(rows), most)
    values = [value for row in rows for value in row]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e18 for v in values):
        raise BadInput(wrong)
    whole = all(isinstance(value, int) for value in values)
    made = np.asarray(values, dtype=np.int64 if whole else np.float32)
    return torch.from_numpy(made).reshape(len(rows), len(rows[0]) if rows else 0)


def _few(number: int, count: int, most: int) -> None:
    if count > most:
        raise TooLarge(f"example {number} has {count} nodes, edges or characters, more than {most}")
