"""From the body of a request to plain examples that a model takes: texts, pairs, vectors, pictures, and others.

n examples, d features, s pixels a side
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.by_name import in_order
from holdfast.data.images import decode_file
from holdfast.data.objects import read_objects
from holdfast.data.questions import Questions
from holdfast.data.raw import GraphList, Pixels, Raw, Texts, Vectors
from holdfast.data.tags import Sentences
from holdfast.serve.limits import Limits, TooLarge
from holdfast.serve.structured import WHERE, graphs, questions, sentences

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
        data = in_order(read_objects(given, where=WHERE, columns=self.columns), self.features)
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
            found.append(decode_file(io.BytesIO(content), size, where=f"example {number}").numpy())
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
