"""Columns of names to codes: labels, domains, splits; arrow encodes, Python sees only the distinct values.

n examples
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.errors import BadInput
from holdfast.data.dataset import SPLITS, encode

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("valid", "validation", "val", "dev", "trial"), 1),
    **dict.fromkeys(("test", "testing", "eval"), 2),
}
_MANY = 20  # classes, from which on labels that are numbers may be measurements
_INTEGRAL = re.compile(r"(-?\d+)\.0*")


class Names:
    """Codes in order of first appearance, gathered piece by piece; -1 where a value is null or blank."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.pieces: list[np.ndarray] = []

    def add(self, column: Any, *, numbers: bool) -> np.ndarray:
        """Append an arrow array; with `numbers` a text such as 1.0 is the number 1."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        coded = column.dictionary_encode()
        values = coded.dictionary.to_pylist()
        table = np.asarray([*(self._code(v, numbers) for v in values), -1], dtype=np.int32)
        codes = table[coded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
        self.pieces.append(codes)
        return codes

    def codes(self) -> np.ndarray:
        return np.concatenate(self.pieces).astype(np.int64)  # (n,)

    def _code(self, value: Any, numbers: bool) -> int:
        if value is None or value != value:  # null or NaN
            return -1
        name = (value.decode() if isinstance(value, bytes) else str(value)).strip()
        if (numbers or not isinstance(value, str)) and (found := _INTEGRAL.fullmatch(name)):
            name = found[1]
        return self.index.setdefault(name, len(self.index)) if name else -1


def class_codes(names: Names) -> tuple[np.ndarray, tuple[str, ...]]:
    """(n,) labels and the classes: numbers in numeric, others in alphabetic order."""
    if not names.index:
        return names.codes(), ()
    order, classes = encode(list(names.index))
    return np.append(order, -1)[names.codes()], classes


def measured(classes: Sequence[str], examples: int, *, where: str) -> str:
    """A sentence where labels look like measurements, else nothing; an error where nearly each is another."""
    if len(classes) <= _MANY or not all(map(_plain_number, classes)):
        return ""
    broken, rare = any(not float(name).is_integer() for name in classes), 2 * len(classes) > examples
    said = f"{where} has {len(classes)} different labels in {examples} examples, all of them numbers"
    mend = "cut them into classes, or name another column with --column label=NAME"
    if broken and rare:
        raise BadInput(f"{said} such as {classes[0]}: there is no task that predicts numbers, so {mend}")
    return f"{said}, and each is a class of its own; if they are measurements, {mend}" if broken or rare else ""


def _plain_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def domain_codes(names: Names, time: np.ndarray | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """(n,) domains in order of first appearance, or of their earliest time."""
    codes, found = names.codes(), list(names.index)
    if time is None:
        return codes, tuple(found)
    order = sorted(range(len(found)), key=lambda i: time[codes == i].min())
    rank = np.empty(len(found), dtype=np.int64)
    rank[order] = np.arange(len(found))
    return rank[codes], tuple(found[i] for i in order)


def split_codes(names: Names, *, where: str, column: str, before: int = 0) -> np.ndarray:
    """(n,) indices into SPLITS, by the usual names of the splits; of `train_sentences` the first word counts.

    -1 for rows of `all`, in a domain that names none. `before` are the rows of the file before these.
    """
    codes = names.codes()
    first = [re.split(r"[_\W\d]", name.lower())[0] for name in names.index]
    table = np.asarray([-1 if word == "all" else SPLIT_NAMES.get(word, -2) for word in first] + [-2], dtype=np.int64)
    split = table[codes]
    if (split < -1).any():
        row = int((split < -1).argmax())
        value = list(names.index)[codes[row]] if codes[row] >= 0 else ""
        raise BadInput(
            f"{where}: row {before + row + 1}, column '{column}' has the split {value!r}: use {', '.join(SPLITS)}, "
            "or leave the column out with --column split="
        )
    return split


def times(column: Any) -> np.ndarray | None:
    """(n,) numbers or dates that can be ordered; None where the column is neither or has gaps."""
    kinds = [pa.float64()] if _number(column.type) else [pa.timestamp("us"), pa.timestamp("us", "UTC")]
    if not _number(column.type) and not pa.types.is_temporal(column.type):
        kinds = [pa.float64(), *kinds]
    for kind in kinds:
        try:
            found = column.cast(kind)
        except pa.ArrowException:
            continue
        if found.null_count:
            return None
        plain = found.to_numpy()
        return None if np.isnan(plain).any() else plain
    return None


def _number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def blank(column: Any) -> Any:
    """Which texts of an arrow string array are null, empty or only spaces."""
    empty = pc.call_function("equal", [pc.call_function("binary_length", [column]), 0])
    return pc.call_function("or", [pc.call_function("utf8_is_space", [column]), empty]).fill_null(True)


def first_true(mask: Any) -> int | None:
    """The index of the first true value of an arrow boolean array."""
    at = pc.index(mask, True).as_py()
    return None if at < 0 else at


class Strings(Sequence[str]):
    """An arrow string column as a sequence of str, without a Python object per row."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Strings: ...
    def __getitem__(self, at: int | slice) -> str | Strings:
        if isinstance(at, slice):
            return Strings(self.column.take(pa.array(range(*at.indices(len(self))), type=pa.int64())))
        return self.column[int(at)].as_py()
