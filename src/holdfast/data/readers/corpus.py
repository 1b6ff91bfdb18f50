"""Plain texts without labels: one document a line, or a table with a column of texts.

n documents
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from holdfast.data.readers import formats
from holdfast.data.readers.table import gathered, read_table


def read_corpus(
    path: Path, *, columns: Mapping[str, str] | None = None, need: Collection[str] = (), pack: int = 0
) -> Dataset:
    """A .txt file, a folder of them (a domain each), or a table; `pack` joins neighbours up to so many characters.

    Only documents of one domain and one split are joined.
    """
    if path.is_dir() or path.suffix.lower() == ".txt":
        if columns:
            raise BadInput(f"{path} is plain text, which has no columns: leave --column out")
        found = _lines(path)
    elif path.suffix.lower() in formats.SUFFIXES:
        found = _texts(path, columns, need)
    else:
        raise BadInput(f"{path} is no corpus: use a .txt file, a folder of them, or {', '.join(formats.SUFFIXES)}")
    return found if not pack else _packed(found, int(pack))


def _lines(path: Path) -> Dataset:
    files = [path] if path.is_file() else sorted(path.glob("*.txt"))
    if not files:
        raise BadInput(f"{path} has no .txt file: a corpus is one, or a folder of them, one document a line")
    texts, domains = [], []
    for file in files:
        try:
            said = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
        except UnicodeDecodeError as error:
            raise BadInput(f"{file} is not UTF-8: convert it") from error
        said = [line for line in said if line]
        texts += said
        domains += [file.stem] * len(said)
    if not texts:
        raise BadInput(f"{path} has no text: write one document a line")
    return gathered(path, Texts.of(texts), {"domain": domains})


def _texts(path: Path, columns: Mapping[str, str] | None, need: Collection[str]) -> Dataset:
    found = read_table(path, columns={"label": "", **(columns or {})}, need=[each for each in need if each == "domain"])
    if not isinstance(found.raw, Texts):
        raise BadInput(f"{path} has no text column: name it with --column text=NAME")
    if found.raw.second is not None:
        raise BadInput(f"{path} has pairs of texts: name the one to learn from with --column text=NAME")
    return replace(found, y=np.full(len(found), -1), classes=())


def _packed(dataset: Dataset, most: int) -> Dataset:
    """Neighbours of one domain and split as one document, as long as it has no more characters."""
    if most < 1:
        raise BadInput(f"pack is a number of characters, at least 1, not {most}")
    texts, first = [], []
    length = 0
    for row, text in enumerate(_all(dataset)):
        same = first and _place(dataset, row) == _place(dataset, first[-1])
        if same and length + 1 + len(text) <= most:
            texts[-1].append(text)
            length += 1 + len(text)
        else:
            texts.append([text])
            first.append(row)
            length = len(text)
    kept = dataset.subset(np.asarray(first))
    return replace(kept, raw=Texts.of([" ".join(parts) for parts in texts]))


def _place(dataset: Dataset, row: int) -> tuple[int, int]:
    return int(dataset.domain[row]), -1 if dataset.split is None else int(dataset.split[row])


def _all(dataset: Dataset) -> Iterable[str]:
    for start in range(0, len(dataset), 65536):
        yield from dataset.raw.take(np.arange(start, min(start + 65536, len(dataset))))
