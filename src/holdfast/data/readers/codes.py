"""Encode columns of names as integer codes: labels, domains and splits; Python sees only distinct values."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.dataset import SPLITS, Dataset, encode
from holdfast.data.raw import Raw
from holdfast.data.readers.arrow import decoded, is_number

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("valid", "validation", "val", "dev", "trial"), 1),
    **dict.fromkeys(("test", "testing", "eval"), 2),
}
SPLIT_FIX = f"use {', '.join(SPLITS)}, or ignore the column with --column split="
UNCLEAR = ("?", "N/A", "n/a", "NA", "nan", "NaN", "NULL", "null", "missing", "Missing")  # names or missing values
_SIMILAR = 5  # groups of similar names with a note each
_INTEGRAL = re.compile(r"(-?\d+)\.0*")


class CodeColumn:
    """Codes in order of first appearance, added in batches; -1 where a value is null or blank."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.batches: list[np.ndarray] = []
        self.padded: set[str] = set()  # values with spaces around them, which are removed

    def add(self, column: Any, *, numbers: bool) -> np.ndarray:
        """Append an Arrow array and return its codes; with `numbers`, the text 1.0 is the number 1."""
        encoded = decoded(column).dictionary_encode()
        values = encoded.dictionary.to_pylist()
        table = np.asarray([*(self._code(v, numbers) for v in values), -1], dtype=np.int32)
        codes = table[encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
        self.batches.append(codes)
        return codes

    @property
    def filled(self) -> int:
        """The number of values that are not missing."""
        return sum(int((codes >= 0).sum()) for codes in self.batches)

    def codes(self) -> np.ndarray:
        """Return all codes (n,)."""
        return np.concatenate(self.batches).astype(np.int64)

    def _code(self, value: Any, numbers: bool) -> int:
        if value is None or value != value:  # null or NaN
            return -1
        text = value.decode() if isinstance(value, bytes) else str(value)
        name = text.strip()
        if name and name != text:
            self.padded.add(text)
        if (numbers or not isinstance(value, str)) and (match := _INTEGRAL.fullmatch(name)):
            name = match[1]
        return self.index.setdefault(name, len(self.index)) if name else -1


def spelling_notes(role: str, column: CodeColumn, *, where: str) -> list[str]:
    """Return notes on names that differ only in case or spaces, and on spaces around names, which are removed."""
    notes, groups = [], dict[str, list[str]]()
    if column.padded:
        listing = f"spaces around {len(column.padded)} {role}s of {where}, such as {min(column.padded)!r}"
        notes.append(f"{listing}, are removed")
    for name in column.index:
        groups.setdefault("".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    counts = np.bincount(column.codes()[column.codes() >= 0], minlength=len(column.index))
    for name in column.index:
        if name in UNCLEAR:
            count = int(counts[column.index[name]])
            cells = f"the {role} {name!r} in {count:,} row{'s' * (count > 1)} of {where}"
            notes.append(f"{cells} is read as a name, not as missing: remove such rows if they have no {role}")
    similar = [names for names in groups.values() if len(names) > 1]
    for names in similar[:_SIMILAR]:
        rows = {name: int(counts[column.index[name]]) for name in names}
        listing = ", ".join(f"{name!r} ({count:,} rows)" for name, count in rows.items())
        fix = f"if they are the same, write {max(rows, key=lambda name: rows[name])!r} in all rows"
        notes.append(f"the {role}s {listing} of {where} differ only in case or spaces and are kept apart: {fix}")
    if len(similar) > _SIMILAR:
        notes.append(f"{len(similar) - _SIMILAR} more groups of {role}s of {where} differ only in case or spaces")
    return notes


def domain_codes(column: CodeColumn, time: np.ndarray | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return domains (n,) and their names, in order of first appearance or of earliest time."""
    codes, names = column.codes(), list(column.index)
    if time is None:
        return codes, tuple(names)
    order = sorted(range(len(names)), key=lambda i: time[codes == i].min())
    return np.argsort(order)[codes], tuple(names[i] for i in order)


def coded_dataset(
    name: str, raw: Raw, coded: Mapping[str, CodeColumn], *, where: str,
    classes: tuple[str, ...] = (), notes: Sequence[str] = (), **fields: Any,
) -> Dataset:  # fmt: skip
    """Build a data set from its coded label, domain and split; without them there are no labels and one domain, `all`.

    `where` is for error messages, and `fields` are further fields of the data set.
    """
    y = np.full(len(raw), -1, dtype=np.int64)
    roles = [role for role in ("label", "domain") if role in coded]
    notes = [*notes, *(note for role in roles for note in spelling_notes(role, coded[role], where=where))]
    if "label" in coded:
        order, classes = encode(list(coded["label"].index))
        y = np.append(order, -1)[coded["label"].codes()]
    domain, domains = np.zeros(len(raw), dtype=np.int64), ("all",)
    if "domain" in coded:
        domain, domains = domain_codes(coded["domain"], fields.get("time"))
    split = split_codes(coded["split"], where=where) if "split" in coded else None
    return Dataset(name, raw, y, classes, domain, domains, split, notes=tuple(notes), **fields)


def split_codes(column: CodeColumn, *, where: str) -> np.ndarray:
    """Return indices (n,) into SPLITS by the conventional split names; in `train_sentences` the first word counts.

    Rows with the split `all` get -1.
    """
    codes = column.codes()
    table = np.asarray([*map(split_index, column.index), -2], dtype=np.int64)
    split = table[codes]
    if (split < -1).any():
        row = int((split < -1).argmax())
        value = list(column.index)[codes[row]] if codes[row] >= 0 else ""
        raise BadInput(f"{where}: row {row + 1}, column 'split' has the split {value!r}: {SPLIT_FIX}")
    return split


def split_index(name: str) -> int:
    """Return the index into SPLITS of a conventional name, -1 for `all`, or -2 for any other name."""
    word = re.split(r"[_\W\d]", name.strip().lower())[0]
    return -1 if word == "all" else SPLIT_NAMES.get(word, -2)


def times(column: Any) -> np.ndarray | None:
    """Return sortable numbers or dates (n,); None if the column is neither or has missing values."""
    dates = [] if is_number(column.type) else [pa.timestamp("us"), pa.timestamp("us", "UTC")]
    for kind in dates if pa.types.is_temporal(column.type) else [pa.float64(), *dates]:
        try:
            converted = column.cast(kind)
        except pa.ArrowException:
            continue
        if converted.null_count:
            return None
        values = converted.to_numpy()
        return None if np.isnan(values).any() else values
    return None
