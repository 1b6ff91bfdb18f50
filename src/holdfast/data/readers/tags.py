"""Sentences with a tag for each word: files of CoNLL's form, and tables with lists of words and of tags.

n sentences
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Sentence
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Raw
from holdfast.data.readers.images import files_below
from holdfast.data.readers.names import SPLIT_NAMES
from holdfast.data.readers.table import ABOUT, finder, gathered, iter_rows

TABLES = (".csv", ".jsonl", ".ndjson", ".parquet")
LINES = (".conll", ".conll03", ".bio", ".iob", ".iob2", ".tsv", ".txt", ".train", ".testa", ".testb")
OUTSIDE = "O"
# the usual names of the ends and of entities of one word, in the tags that say them
MEANT = {"B": "B", "I": "I", "E": "I", "L": "I", "M": "I", "S": "B", "U": "B"}
SPLITS = {**SPLIT_NAMES, "devel": 1, "testa": 1, "testb": 2}

Said = tuple[list[str], list[str] | None]  # words, and their tags as they are written


class Sentences(Raw):
    """Words of sentences and the numbers of their tags, as arrow lists."""

    kind = "text"

    def __init__(self, words: Sequence[list[str]], tags: Sequence[list[int]] | None) -> None:
        self.words = pa.array(words, type=pa.large_list(pa.large_string()))
        self.tags = None if tags is None else pa.array(tags, type=pa.large_list(pa.int32()))

    def __len__(self) -> int:
        return len(self.words)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> list[Sentence]:
        at = pa.array(rows)
        words = self.words.take(at).to_pylist()
        tags = [None] * len(words) if self.tags is None else self.tags.take(at).to_pylist()
        return [Sentence(*pair) for pair in zip(words, tags, strict=True)]

    def digest(self, rows: np.ndarray) -> str:
        found = hashlib.sha256()
        for each in self.take(rows):
            found.update(repr(tuple(each)).encode())
        return found.hexdigest()


def read_tags(
    path: Path, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("tags",), column: int = -1
) -> Dataset:
    """A table, or lines of a word and its tag, one file or a folder of them; `column` is where a line has the tag.

    A folder has a file for each domain, or for each split where the files are called so; a folder in it is a domain.
    """
    about: dict[str, list[Any]] = {}
    if path.suffix.lower() in TABLES and path.is_file():
        said = _from_table(path, columns, about, tagged="tags" in need)
    elif columns:
        raise BadInput(f"{path} has no columns with names: leave --column out, and say @column=3 for the third")
    else:
        said = _from_lines(path, about, column, tagged="tags" in need)
    if not said:
        raise BadInput(f"{path} has no sentences: write a word and its tag a line, and a blank line after a sentence")
    words, tags = [each[0] for each in said], [each[1] for each in said]
    if any(each is None for each in tags):
        return gathered(path, Sentences(words, None), about)
    mended, known, notes = _numbered(path, tags)  # pyright: ignore[reportArgumentType]
    return gathered(path, Sentences(words, mended), about, classes=known, notes=notes)


def _from_table(
    path: Path, columns: Mapping[str, str] | None, about: dict[str, list[Any]], *, tagged: bool
) -> list[Said]:
    found = finder(path, columns)
    roles = {role: found.role(role) for role in ("tokens", "tags", *ABOUT)}
    if roles["tokens"] is None and not tagged:
        roles["tokens"] = found.role("text")
    for role in ("tokens", "tags") if tagged else ("tokens",):
        if roles[role] is None:
            raise found.missing(role)
    there = {role: name for role, name in roles.items() if name is not None}
    about.update({role: [] for role in ABOUT if role in there})
    said = []
    for row, each in enumerate(iter_rows(path, list(there.values())), start=1):
        words = _listed(each[there["tokens"]])
        tags = _listed(each[there["tags"]]) if "tags" in there else None
        if not words or any(not word.strip() for word in words):
            raise BadInput(f"{path}: row {row}, column '{there['tokens']}' has no words, or a blank one: take it out")
        if tags is not None and len(tags) != len(words):
            raise BadInput(f"{path}: row {row} has {len(words)} words but {len(tags)} tags: give each word one")
        said.append((words, tags))
        for role in about:
            about[role].append(each[there[role]])
    return said


def _listed(value: Any) -> list[str]:
    """A list, or a text with blanks between."""
    return [str(each) for each in value] if isinstance(value, list) else str("" if value is None else value).split()


def _from_lines(path: Path, about: dict[str, list[Any]], column: int, *, tagged: bool) -> list[Said]:
    files = [path] if path.is_file() else sorted(p for p in files_below(path) if p.suffix.lower() in LINES)
    if not files:
        raise BadInput(f"{path} has no file of words and tags: they end in {', '.join(LINES)}")
    splits = {file: _split(file) for file in files}
    said = []
    for file in files:
        found = list(_sentences(file, column, tagged=tagged))
        said += found
        split = splits[file]
        domain = file.stem if split is None else file.parent.name if path.is_dir() else "all"
        about.setdefault("domain", []).extend([domain] * len(found))
        if all(each is not None for each in splits.values()) and path.is_dir():
            about.setdefault("split", []).extend([split] * len(found))
    return said


def _split(file: Path) -> str | None:
    """The split that a file is called after: `train.conll`, `eng.testa`."""
    for word in (file.stem.lower(), file.suffix.lower().lstrip(".")):
        if word in SPLITS:
            return ("train", "valid", "test")[SPLITS[word]]
    return None


def _sentences(file: Path, column: int, *, tagged: bool) -> Iterator[Said]:
    words, tags = [], []
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not UTF-8: convert it") from error
    for number, line in enumerate([*lines, ""], start=1):
        parts = line.split()
        if not parts or parts[0] == "-DOCSTART-":
            if words:
                yield words, tags if len(tags) == len(words) else None
            words, tags = [], []
            continue
        words.append(parts[0])
        place = column if column < 0 else column - 1
        if len(parts) > 1 and -len(parts) <= place < len(parts):
            tags.append(parts[place])
        elif tagged:
            raise BadInput(f"{file}: line {number} has no tag beside '{parts[0]}': write a word and its tag a line")


def _numbered(path: Path, said: Sequence[Sequence[str]]) -> tuple[list[list[int]], tuple[str, ...], list[str]]:
    """Tags as B-, I- and O, and numbers for them; every kind of entity has both B- and I-."""
    begun, written = 0, []
    for row, tags in enumerate(said, start=1):
        found, before = [], OUTSIDE
        for tag in tags:
            mark, _, kind = tag.partition("-")
            if tag != OUTSIDE and (mark not in MEANT or not kind):
                raise BadInput(
                    f"{path}: sentence {row} has the tag '{tag}': tags are O, or B- and I- with a kind, as B-LOC; "
                    "where another column has them, say so with @column=NUMBER or --column tags=NAME"
                )
            if tag != OUTSIDE:
                fresh = MEANT[mark] == "I" and before != kind
                begun += fresh
                tag = f"{'B' if fresh else MEANT[mark]}-{kind}"
            before = tag.partition("-")[2] or OUTSIDE
            found.append(tag)
        written.append(found)
    kinds = sorted({tag[2:] for tags in written for tag in tags if tag != OUTSIDE})
    if not kinds:
        raise BadInput(f"{path} has no entity, only the tag O: there is nothing to learn")
    classes = (OUTSIDE, *(f"{mark}-{kind}" for kind in kinds for mark in "BI"))
    index = {name: i for i, name in enumerate(classes)}
    notes = [f"{begun:,} entities of {path.name} begin with I-, and are read as if with B-"] if begun else []
    return [[index[tag] for tag in tags] for tags in written], classes, notes
