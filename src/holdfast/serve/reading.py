"""What a server takes on, and the refusals that are not the fault of the examples."""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, Question
from holdfast.data.align import align_features
from holdfast.data.decode import decode_image
from holdfast.data.raw import GraphList, Pixels, Raw, Texts, Vectors
from holdfast.data.readers.columns import ColumnFinder
from holdfast.data.readers.molecules import molecules
from holdfast.data.readers.questions import Questions
from holdfast.data.readers.table import read_json_rows
from holdfast.data.readers.tags import Sentences


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times; what goes beyond is refused before it costs anything."""

    body: int = 8_000_000  # bytes of a request
    examples: int = 256  # of a request
    text: int = 20_000  # characters of one text, nodes or edges of one graph
    seconds: float = 30.0  # from a request's first byte to its answer
    batch: int = 64  # examples that are predicted at once
    wait: float = 0.005  # seconds that the first of a batch waits for others
    waiting: int = 4096  # examples that may be queued

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name != "wait"):
                raise BadInput(f"the limit on {field.name} must be above 0, not {value}")


class TooLarge(BadInput):
    """A request is larger than the server takes."""


class Busy(Exception):
    """The server cannot take this now; later it may."""


WHERE = "the request"
PARTS = {"sentence": ("tokens",), "question": ("question", "context")}
GRAPH = '{"nodes": [[...], ...], "edges": [[from, to], ...]}'

Found = tuple[list[Any], list[str] | None]  # the examples, and their ids where they have some


def sentences(given: Sequence[Any], columns: Mapping[str, str] | None) -> Found:
    """Words of each example: a list of them, a text with blanks between, or an object with such a column."""
    if not isinstance(given[0], dict):
        return [_words(number, each) for number, each in enumerate(given, 1)], None
    names = _names(given)
    found = ColumnFinder(WHERE, names, columns)
    column = found.role("tokens") or found.role("text")
    if column is None:
        raise found.missing("tokens")
    return [_words(i, each.get(column)) for i, each in enumerate(given, 1)], _ids(given, found)


def questions(given: Sequence[Any], columns: Mapping[str, str] | None) -> Found:
    """A list of a question and its text, or an object with both."""
    if not isinstance(given[0], dict):
        return [_question(number, each) for number, each in enumerate(given, 1)], None
    names = _names(given)
    found = ColumnFinder(WHERE, names, columns)
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


def _ids(given: Sequence[Any], found: ColumnFinder) -> list[str] | None:
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


FORM = 'send {"examples": [...]} or {"example": ...}'


@dataclass(frozen=True, slots=True)
class Asked:
    """Examples of one request; those with the same shape may be predicted together."""

    examples: Any  # a list of texts or of pairs, or rows of an array
    shape: tuple[Any, ...]
    ids: list[str] | None = None

    def __len__(self) -> int:
        return len(self.examples)


class Reader:
    """Reads bodies of texts, vectors, images (of `size` pixels a side), sentences, questions or graphs."""

    def __init__(
        self,
        kind: str,
        limits: Limits,
        *,
        size: int | None = None,
        columns: Mapping[str, str] | None = None,
        features: Sequence[str] | None = None,
    ) -> None:
        self.kind, self.limits, self.size, self.columns = kind, limits, size, columns
        self.features = features  # how a vector's numbers are called, where the model has names for them

    def read(self, body: bytes) -> Asked:
        """The examples, or one sentence that says what is wrong with them."""
        given = _examples(body)
        if len(given) > self.limits.examples:
            raise TooLarge(f"{len(given)} examples are more than the {self.limits.examples} of one request: send fewer")
        if self.kind == "image":
            return self._images(given)
        if self.kind in ("sentence", "question", "graph"):
            return self._structured(given)
        if self.kind == "vector" and isinstance(given[0], list):
            return self._vectors(given)
        asked = self._rows(given) if isinstance(given[0], dict) else self._texts(given)
        if self.kind == "text":
            self._check_length(asked.examples)
        return asked

    def _texts(self, given: list[Any]) -> Asked:
        """Plain texts, or pairs of them; they need no columns to be looked for."""
        pair = isinstance(given[0], list)
        for number, each in enumerate(given, 1):
            parts: list[Any] = each if isinstance(each, list) and pair else [each]
            if self.kind != "text" or len(parts) != 1 + pair or not all(isinstance(part, str) for part in parts):
                takes = "a text or a pair of texts" if self.kind == "text" else "a list of numbers"
                raise BadInput(f"example {number} is not {takes} as all must be, or objects with columns: mend it")
            if not all(part.strip() for part in parts):
                raise BadInput(f"example {number} has no text: fill it in or take it out")
            if not all(_can_be_written(part) for part in parts):
                raise BadInput(f"example {number} holds half a character: mend its encoding")
        found = [tuple(each) for each in given] if pair else given
        return Asked(found, ("text", type(found[0])))

    def _rows(self, given: list[Any]) -> Asked:
        """Objects as rows of a table."""
        for number, each in enumerate(given, 1):
            if not isinstance(each, dict):
                raise BadInput(f"example {number} is no object with columns as the first is: mend it")
            if not all(map(_can_be_written, each)):
                raise BadInput(f"the name of a column of example {number} holds half a character: mend its encoding")
        data = align_features(read_json_rows(given, where=WHERE, columns=self.columns), self.features)
        if data.raw.kind != self.kind:
            raise BadInput(f"this model takes {self.kind}s but the request holds {data.raw.kind}s")
        ids = None if data.ids is None else list(data.ids)
        found = data.raw.take(np.arange(len(data)))
        if self.kind == "vector":
            return Asked(found.numpy(), ("vector", found.shape[1]), ids)
        return Asked(found, ("text", type(found[0])), ids)

    def _structured(self, given: list[Any]) -> Asked:
        if self.kind == "graph":
            found, ids = graphs(given, self.limits.text)
        else:
            found, ids = (sentences if self.kind == "sentence" else questions)(given, self.columns)
            self._check_length([part[:2] if self.kind == "question" else part for part in found])
        return Asked(found, (self.kind,), ids)

    def _check_length(self, examples: Sequence[Any]) -> None:
        for number, each in enumerate(examples, 1):
            long = len(each) if isinstance(each, str) else sum(map(len, each))
            if long > self.limits.text:
                raise TooLarge(f"the text of example {number} has {long} characters, more than {self.limits.text}")

    def _vectors(self, given: list[Any]) -> Asked:
        width = len(given[0])
        for number, row in enumerate(given, 1):
            if not isinstance(row, list) or len(row) != width or not all(_is_number(value) for value in row):
                raise BadInput(f"example {number} is no list of {width} numbers as the first is: mend it")
        with np.errstate(over="ignore"):
            found = np.asarray(given, dtype=np.float32)
        if not np.isfinite(found).all():
            raise BadInput("a number is too large: features are numbers of 32 bits")
        return Asked(found, ("vector", width))

    def _images(self, given: list[Any]) -> Asked:
        size, found = self.size or 224, []
        for number, each in enumerate(given, 1):
            text = each.get("image") if isinstance(each, dict) else each
            if not isinstance(text, str):
                raise BadInput(f"example {number} is no image: send its file in base64, as a text or as column 'image'")
            try:
                content = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError) as error:
                raise BadInput(f"example {number} is not in base64: encode the image's file anew") from error
            found.append(decode_image(io.BytesIO(content), size, where=f"example {number}").numpy())
        return Asked(np.stack(found), ("image", size))


def as_one(lot: Sequence[Asked]) -> Raw:
    """The examples of several requests of one shape as one column."""
    kind = lot[0].shape[0]
    if kind in ("vector", "image"):
        rows = np.concatenate([np.asarray(asked.examples) for asked in lot])
        return Vectors(rows) if kind == "vector" else Pixels(rows)
    every = [each for asked in lot for each in asked.examples]
    match kind:
        case "text":
            return Texts.of(every)
        case "sentence":
            return Sentences(every, None)
        case "question":
            return Questions(every)
    return GraphList(every)


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _examples(body: bytes) -> list[Any]:
    try:
        found = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON ({str(error).splitlines()[0][:80]}): {FORM}") from error
    if isinstance(found, dict) and len(found) == 1:
        if "example" in found:
            return [found["example"]]
        if isinstance(given := found.get("examples"), list):
            if not given:
                raise BadInput(f"there are no examples: {FORM}")
            return given
    raise BadInput(f"the body has another form: {FORM}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
