"""Tables as csv files, and tables with a number, missing values and a category from a synthetic world."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast.core.table import Column
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Table, Texts
from holdfast.data.synthetic import world


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def table_world(kind: str = "table", **options) -> Dataset:
    """Return vectors as a table: the sign of the first column is a category, every ninth number is missing."""
    dataset = world("vector", "none", **options)
    numbers = dataset.raw.take(np.arange(len(dataset))).numpy().copy()
    codes = (numbers[:, :1] > 0).astype(np.int32)
    codes[::7] = -1
    numbers.flat[::9] = np.nan
    schema = (*(Column(f"x{i}", "number") for i in range(numbers.shape[1])), Column("sign", "category", ("-", "+")))
    names = ["small", "large"]
    texts = Texts.of([f"a {names[int(code[0])]} sign of {i % 5}" for i, code in enumerate(codes)])
    return replace(dataset, raw=Table(schema, numbers, codes, texts if kind == "mixed" else None))
