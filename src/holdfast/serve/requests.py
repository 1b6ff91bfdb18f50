"""Request bodies: limits, and parsing of examples of every kind into the inputs of a model."""

import base64
import binascii
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, Question, Sentence
from holdfast.core.table import Schema, TableRows
from holdfast.data.align import align_features, model_columns
from holdfast.data.decode import count_pixels, decode_image
from holdfast.data.raw import GraphList, Pixels, Raw, Records, Table, Texts, Vectors
from holdfast.data.readers.columns import ColumnFinder
from holdfast.data.readers.molecules import molecules
from holdfast.data.readers.tables import read_json_rows

WHERE = "the request"
QUESTION_ROLES = ("question", "context")
NEEDED = {"nodes", "edges"}  # of a graph
GRAPH = '{"nodes": [[...], ...], "edges": [[from, to], ...]}'
FORM = 'send {"examples": [...]} or {"example": ...}'


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times; larger requests are rejected early."""

    body: int = 8_000_000  # bytes per request
    examples: int = 256  # per request
    text: int = 20_000  # characters per text, nodes or edges per graph
    smiles: int = 2_000  # characters per molecule, whose parsing time grows with the square of its length
    pixels: int = 50_000_000  # of all images of a request
    seconds: float = 30.0  # from the first byte of a request to its answer
    batch: int = 64  # examples per forward pass
    wait: float = 0.005  # seconds the first request of a batch waits for others
    waiting: int = 4096  # queued examples

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name != "wait"):
                raise BadInput(f"the limit of {field.name} must be above 0; got {value}")


class TooLarge(BadInput):
    """A request exceeds a limit of the server."""


class Busy(Exception):
    """The server cannot accept the request now."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """Examples of one request; requests of equal shape can share a batch."""

    examples: Any  # texts, pairs, sentences, questions or graphs in a list, or rows of an array
    shape: tuple[Any, ...]
    ids: list[str] | None = None

    def __len__(self) -> int:
        return len(self.examples)


@dataclass
class RequestParser:
    """Parses bodies with texts, vectors, images, sentences, questions or graphs."""

    kind: str
    limits: Limits
    _: KW_ONLY
    size: int | None = None
    columns: Mapping[str, str] | None = None
    features: Sequence[str] | None = None  # names of a model trained on a table
    schema: Schema = ()  # and their kinds

    def parse(self, body: bytes, *, until: float = float("inf")) -> ParsedRequest:
        """Return the examples; raise BadInput for a malformed body, TooLarge for a large one.

        Images and molecules are parsed until the time `until` of `time.monotonic`; then Busy is raised.
        """
        examples = _decode(body)
        if len(examples) > self.limits.examples:
            raise TooLarge(f"the request has {len(examples)} examples, the limit is {self.limits.examples}: send fewer")
        if self.kind == "image":
            return self._images(examples, until)
        if self.kind == "graph":
            return self._graphs(examples, until)
        if self.kind in ("sentence", "question"):
            return self._annotated(examples)
        if self.kind == "vector" and isinstance(examples[0], list):
            return self._vectors(examples)
        request = self._rows(examples, until) if isinstance(examples[0], dict) else self._texts(examples)
        if self.kind == "text":
            self._check_length(request.examples)
        return request

    def _texts(self, examples: list[Any]) -> ParsedRequest:
        """Parse plain texts or pairs of texts."""
        pair = isinstance(examples[0], list)
        for number, example in enumerate(examples, 1):
            texts: list[Any] = example if isinstance(example, list) and pair else [example]
            if self.kind != "text" or len(texts) != 1 + pair or not all(isinstance(text, str) for text in texts):
                expected = "a text or a pair of texts" if self.kind == "text" else "a list of numbers"
                fix = "send examples of one kind, or objects with columns"
                raise BadInput(f"example {number} is not {expected}: {fix}")
            for text in texts:
                _check_text(number, text)
        values = [tuple(example) for example in examples] if pair else examples
        return ParsedRequest(values, ("text", type(values[0])))

    def _rows(self, examples: list[Any], until: float) -> ParsedRequest:
        """Parse objects as rows of a table; a column of images holds files in base64."""
        for name in _column_names(examples):
            _check_text(1, name, blank=True)
        if self.schema:
            examples = self._complete(examples)
        images, kind = None, self.kind
        columns = model_columns(self.columns, self.schema, self.features, size=self.size) or {}
        if kind == "mixed" and (column := columns.pop("image", None)) is not None:
            images, kind = self._images([{"image": row.pop(column)} for row in examples], until).examples, "table"
        data = align_features(read_json_rows(examples, where=WHERE, columns=columns), self.features, self.schema)
        if data.raw.kind != kind:
            raise BadInput(f"the model expects {self.kind}s but the request contains {data.raw.kind}s")
        ids = None if data.ids is None else list(data.ids)
        values = data.raw.take(np.arange(len(data)))
        if self.kind == "vector":
            return ParsedRequest(values.numpy(), ("vector", values.shape[1]), ids)
        if isinstance(values, TableRows):
            values = values if images is None else replace(values, companion=torch.from_numpy(images))
            return ParsedRequest(values, ("table",), ids)
        return ParsedRequest(values, ("text", type(values[0])), ids)

    def _complete(self, examples: list[Any]) -> list[dict[str, Any]]:
        """Return rows with all columns of the model; a column that an example lacks is missing."""
        names = {column.name for column in self.schema}
        for number, row in enumerate(examples, 1):
            if not isinstance(row, dict) or not names & set(row):
                shown = ", ".join(sorted(names)[:12])
                raise BadInput(f"example {number} has none of the model's columns: send objects with {shown}")
        return [{**dict.fromkeys(self.features or names), **row} for row in examples]

    def _annotated(self, examples: list[Any]) -> ParsedRequest:
        """Parse sentences (words, or texts), questions with their contexts, or objects with columns of these."""
        is_sentence, ids, contents = self.kind == "sentence", None, examples
        if isinstance(examples[0], dict):
            finder = ColumnFinder(WHERE, _column_names(examples), self.columns)
            if is_sentence:
                column = finder.role("tokens") or finder.role("text")
                if column is None:
                    raise finder.missing("tokens")
                contents = [example.get(column) for example in examples]
            else:
                names = finder.roles(QUESTION_ROLES).values()
                contents = [[example.get(name) for name in names] for example in examples]
            if (column := finder.role("id")) is not None:
                ids = [_id(number, example.get(column)) for number, example in enumerate(examples, 1)]
        parse = _words if is_sentence else _question
        values = [parse(number, value) for number, value in enumerate(contents, 1)]
        self._check_length(values if is_sentence else [value[:2] for value in values])
        return ParsedRequest(values, (self.kind,), ids)

    def _graphs(self, examples: list[Any], until: float) -> ParsedRequest:
        """Parse objects of nodes and edges, or molecules in SMILES."""
        values = []
        for number, example in enumerate(examples, 1):
            check_time(until)
            if isinstance(example, str):
                _check_count(number, len(example), self.limits.smiles)
                values += molecules([_check_text(number, example)], WHERE, rows=[number])
            elif isinstance(example, dict) and NEEDED <= set(example) <= {*NEEDED, "weights", "id"}:
                values.append(_graph(number, example, self.limits.text))
            else:
                raise BadInput(f"example {number} is not a graph: send {GRAPH}, optionally with weights, or SMILES")
        ids = [example.get("id") if isinstance(example, dict) else None for example in examples]
        known = any(value is not None for value in ids)
        return ParsedRequest(
            values, ("graph",), [_id(number, value) for number, value in enumerate(ids, 1)] if known else None
        )

    def _check_length(self, examples: Sequence[Any]) -> None:
        for number, example in enumerate(examples, 1):
            length = len(example) if isinstance(example, str) else sum(map(len, example))
            if length > self.limits.text:
                raise TooLarge(f"example {number} has {length} characters, the limit is {self.limits.text}: shorten it")

    def _vectors(self, examples: list[Any]) -> ParsedRequest:
        width = len(examples[0])
        for number, row in enumerate(examples, 1):
            if not isinstance(row, list) or not all(_is_number(value) for value in row):
                raise BadInput(f"example {number} is not a list of {width} numbers: send lists of numbers only")
            if len(row) != width:
                raise BadInput(f"example {number} has {len(row)} values, expected {width} as in example 1")
        with np.errstate(over="ignore"):
            values = np.asarray(examples, dtype=np.float32)
        if not np.isfinite(values).all():
            raise BadInput("a number exceeds the range of float32: scale the features")
        return ParsedRequest(values, ("vector", width))

    def _images(self, examples: list[Any], until: float) -> ParsedRequest:
        """Decode images after all headers were checked."""
        size, files, pixels = self.size or 224, [], 0
        for number, example in enumerate(examples, 1):
            text = example.get("image") if isinstance(example, dict) else example
            if not isinstance(text, str):
                raise BadInput(f"example {number} is not an image: send the file in base64, plain or as column 'image'")
            try:
                files.append(io.BytesIO(base64.b64decode(text, validate=True)))
            except (binascii.Error, ValueError) as error:
                raise BadInput(f"example {number} is not valid base64: encode the image file again") from error
            pixels += count_pixels(files[-1])
            if pixels > self.limits.pixels:
                limit = self.limits.pixels
                raise TooLarge(f"the images have more than {limit} pixels together: send fewer or smaller ones")
        images = []
        for number, file in enumerate(files, 1):
            check_time(until)
            images.append(decode_image(file, size, where=f"example {number}").numpy())
        return ParsedRequest(np.stack(images), ("image", size))


def check_time(until: float) -> None:
    """Raise Busy after the time `until` of `time.monotonic`."""
    if time.monotonic() > until:
        raise Busy("the request took too long: send fewer examples or retry later")


def _column_names(examples: Sequence[Any]) -> list[str]:
    for number, example in enumerate(examples, 1):
        if not isinstance(example, dict):
            raise BadInput(f"example {number} is not an object with columns like example 1: send examples of one kind")
    return list(dict.fromkeys(name for example in examples for name in example))


def _id(number: int, value: Any) -> str:
    if value is not None and (not isinstance(value, str | int) or isinstance(value, bool)):
        raise BadInput(f"the id of example {number} is not a string or an integer: send one of them")
    return _check_text(number, "" if value is None else str(value), blank=True)


def _words(number: int, value: Any) -> list[str]:
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise BadInput(f"example {number} has no words: send a text or a list of words")
    return [_check_text(number, word) for word in words]


def _question(number: int, value: Any) -> Question:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(text, str) for text in value):
        raise BadInput(f"example {number} is not a question with a context: send [question, context] or an object")
    question, context = (_check_text(number, text) for text in value)
    return Question(context, question)


def _check_text(number: int, text: str, *, blank: bool = False) -> str:
    if not blank and not text.strip():
        raise BadInput(f"example {number} has a blank text or word: fill it in or remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"example {number} contains an unpaired surrogate: fix its encoding") from error
    return text


def _graph(number: int, example: Mapping[str, Any], limit: int) -> Graphs:
    nodes, edges, weights = example["nodes"], example["edges"], example.get("weights")
    if isinstance(nodes, int) and not isinstance(nodes, bool):
        _check_count(number, nodes, limit)
        nodes = [[]] * max(0, nodes)
    node_rows, edge_rows = _number_rows(number, "nodes", nodes, limit), _number_rows(number, "edges", edges, limit)
    edge_rows = edge_rows if len(edges) else edge_rows.reshape(-1, 2)
    if edge_rows.shape[1] != 2 or edge_rows.is_floating_point():
        raise BadInput(f"example {number} has an edge that is not a pair of integers: send {GRAPH}")
    weight_rows = None if weights is None else _number_rows(number, "weights", weights, limit)
    return Graphs.single(node_rows, edge_rows.T.contiguous(), weight_rows)


def _number_rows(number: int, name: str, rows: Any, limit: int) -> Tensor:
    """Return (v or e, k) integers if all values are integers, else float32."""
    error = f"example {number} has {name} that are not a list of lists of numbers of equal length: send {GRAPH}"
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows) or len(set(map(len, rows))) > 1:
        raise BadInput(error)
    _check_count(number, len(rows), limit)
    values = [value for row in rows for value in row]
    if not all(_is_number(value, below=1e18) for value in values):
        raise BadInput(error)
    dtype = np.int64 if all(isinstance(value, int) for value in values) else np.float32
    return torch.from_numpy(np.asarray(values, dtype=dtype)).reshape(len(rows), len(rows[0]) if rows else 0)


def _check_count(number: int, count: int, limit: int) -> None:
    if count > limit:
        raise TooLarge(f"example {number} has {count} nodes, edges or characters, the limit is {limit}")


def merge(requests: Sequence[ParsedRequest]) -> Raw:
    """Return the examples of several requests of one shape as raw examples."""
    kind = requests[0].shape[0]
    if kind in ("vector", "image"):
        rows = np.concatenate([np.asarray(request.examples) for request in requests])
        return Vectors(rows) if kind == "vector" else Pixels(rows)
    if kind == "table":
        return Table.of(TableRows.cat([request.examples for request in requests]))
    examples = [example for request in requests for example in request.examples]
    if kind == "sentence":
        return Records([Sentence(words) for words in examples])
    return {"text": Texts.of, "question": Records, "graph": GraphList}[kind](examples)


def _is_number(value: Any, *, below: float = 1e300) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < below


def _decode(body: bytes) -> list[Any]:
    try:
        document = _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON ({str(error).splitlines()[0][:80]}): {FORM}") from error
    if isinstance(document, dict) and len(document) == 1:
        if "example" in document:
            return [document["example"]]
        if isinstance(examples := document.get("examples"), list):
            if not examples:
                raise BadInput(f"the list of examples is empty: {FORM}")
            return examples
    raise BadInput(f"the body has the wrong structure: {FORM}")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)  # building one takes longer than decoding a request
