"""Read plain texts without labels: text files with one document per line, or a table with a text column."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast.core.errors import BadInput, check_at_least
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from holdfast.data.readers import formats
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.tables import read_table, unlabelled_dataset

PLAIN = ReadOptions(need=())


def read_corpus(path: Path, options: ReadOptions = PLAIN, *, pack: int = 0) -> Dataset:
    """Read a .txt file, a folder of them (one domain per file) or a table; `pack` joins documents up to this length."""
    if path.is_dir() or path.suffix.lower() == ".txt":
        if options.columns:
            raise BadInput(f"{path} is plain text, which has no columns: remove --column")
        dataset = _read_lines(path)
    elif path.suffix.lower() in formats.SUFFIXES:
        dataset = _read_column(path, options)
    else:
        raise BadInput(f"{path} is not a corpus: use a .txt file, a folder of them, or {', '.join(formats.SUFFIXES)}")
    return dataset if not pack else _pack(dataset, int(pack))


def _read_lines(path: Path) -> Dataset:
    files = [path] if path.is_file() else sorted(path.glob("*.txt"))
    if not files:
        raise BadInput(f"{path} has no .txt file: a corpus has one document per line in one or several .txt files")
    texts, domains = [], []
    for file in files:
        documents = [line.strip() for line in formats.read_lines(file) if line.strip()]
        texts += documents
        domains += [file.stem] * len(documents)
    if not texts:
        raise BadInput(f"{path} has no text: write one document per line")
    return unlabelled_dataset(path, Texts.of(texts), {"domain": domains})


def _read_column(path: Path, options: ReadOptions) -> Dataset:
    needed = [role for role in options.need if role == "domain"]
    dataset = read_table(path, ReadOptions({"label": "", **(options.columns or {})}, needed))
    if not isinstance(dataset.raw, Texts):
        raise BadInput(f"{path} has no text column: name it with --column text=NAME")
    if dataset.raw.second is not None:
        raise BadInput(f"{path} has pairs of texts: choose the column to read with --column text=NAME")
    return replace(dataset, y=np.full(len(dataset), -1), classes=())


def _pack(dataset: Dataset, limit: int) -> Dataset:
    """Concatenate successive documents of the same domain and split up to `limit` characters."""
    check_at_least(1, pack=limit)
    split = dataset.split_codes
    groups: list[list[str]] = []
    first: list[int] = []  # row of the first document per group
    length = 0
    for start in range(0, len(dataset), 65536):
        for row, text in enumerate(dataset.raw.take(np.arange(start, min(start + 65536, len(dataset)))), start=start):
            last = first[-1] if first else -1
            same = bool(first) and dataset.domain[row] == dataset.domain[last] and split[row] == split[last]
            if same and length + 1 + len(text) <= limit:
                groups[-1].append(text)
                length += 1 + len(text)
            else:
                groups.append([text])
                first.append(row)
                length = len(text)
    return replace(dataset.subset(np.asarray(first)), raw=Texts.of([" ".join(group) for group in groups]))
