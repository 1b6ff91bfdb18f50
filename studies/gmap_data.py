"""Data of the G-MAP studies: pooled data sets without duplicates, and corpora without the texts of a data set.

The folder of the user holds the data sets in the layout of `holdfast list datasets`, and
`corpora_unlabelled.parquet` with the columns `text` and `domain`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.load import load_data
from holdfast.data.raw import Texts

CORPORA = "corpora_unlabelled.parquet"
TASKS = {"computer science": "acl-arc", "news": "hyperpartisan"}  # corpus -> the data set that it serves
SEGMENT = 600  # characters; neighbouring texts of a corpus are joined up to this length, about 128 tokens
HELD_OUT = 20  # every 20th segment of a corpus is a test segment, and another one a validation segment


def _key(text: str) -> str:
    return " ".join(text.lower().split())


def pooled(name: str, data: Path) -> Dataset:
    """Return all splits of a data set as one, with one copy of each text; texts with two labels are removed."""
    dataset = load_data(name, data_dir=data)
    labels: dict[str, set[int]] = {}
    first: dict[str, int] = {}
    for row, text in enumerate(dataset.raw.take(np.arange(len(dataset)))):
        key = _key(str(text))
        first.setdefault(key, row)
        labels.setdefault(key, set()).add(int(dataset.y[row]))
    rows = [row for key, row in first.items() if len(labels[key]) == 1]
    subset = dataset.subset(np.asarray(sorted(rows)))
    return replace(subset, name=name, split=None).as_one_domain(name)


def corpus(name: str, data: Path) -> Dataset:
    """Return segments of one corpus with fixed splits, without the texts of the data set that it serves."""
    everything = load_data(data / CORPORA, need=(), form="corpus")
    excluded = {_key(str(text)) for text in _texts(load_data(TASKS[name], data_dir=data))}
    texts = [text for text in _texts(everything.subset(everything.rows_of(name))) if _key(text) not in excluded]
    segments = joined(texts, SEGMENT)
    order = np.arange(len(segments)) % HELD_OUT
    split = np.where(order == 0, SPLITS.index("test"), SPLITS.index("train"))
    split[order == HELD_OUT // 2] = SPLITS.index("valid")
    zeros = np.zeros(len(segments), dtype=np.int64)
    return Dataset(name, Texts.of(segments), zeros - 1, (), zeros, (name,), split)


def _texts(dataset: Dataset) -> list[str]:
    return [str(text) for text in dataset.raw.take(np.arange(len(dataset)))]


def joined(texts: list[str], limit: int) -> list[str]:
    """Join neighbouring texts up to a number of characters; a longer text stays as it is."""
    segments: list[str] = []
    for text in texts:
        if segments and len(segments[-1]) + len(text) < limit:
            segments[-1] += f" {text}"
        else:
            segments.append(text)
    return segments
