"""A table without copies: the user's own rows and columns where the data is a table, else what the data set holds.

n rows
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from holdfast.core.inputs import Question, Sentence
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.readers import formats
from holdfast.data.readers.formats import iter_rows
from holdfast.data.write import check_not_input, check_suffix, write_tables

LINES = (".jsonl", ".ndjson")


def check_clean(out: Path, data: object) -> None:
    """Refuse, before any work is done, a file that cannot be written or that is the input itself."""
    check_suffix(out)
    check_not_input("--clean", out, data)


def write_clean(out: Path, data: str | Path | Dataset, dataset: Dataset, kept: np.ndarray) -> Path:
    """These rows, in file order; images are listed by their files, other kinds that no table holds by their rows."""
    path = None if isinstance(data, Dataset) else Path(data).expanduser()
    if path is not None and path.suffix.lower() in LINES and out.suffix == ".jsonl" and path.is_file():
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        if len(lines) == len(dataset):
            return write_text(out, "".join(f"{lines[row]}\n" for row in kept))
    own = None if path is None else _own_table(path)
    table = own.take(pa.array(kept)) if own is not None and len(own) == len(dataset) else _made(dataset, kept)
    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    if nested and out.suffix == ".csv":
        raise BadInput(f"column '{nested[0]}' holds lists, which a csv file cannot: name a .jsonl or .parquet file")
    return write_tables(out, iter([table]))


def _own_table(path: Path) -> pa.Table | None:
    """The whole table that a data set was read from, values as they are written; None where it was no table."""
    if path.suffix.lower() not in formats.SUFFIXES or not path.is_file():
        return None
    if path.suffix.lower() == ".parquet":
        return formats.parquet.read_table(path)
    names = formats.read_schema(path).names
    if path.suffix.lower() in LINES:
        return pa.Table.from_pylist(list(iter_rows(path, names)))
    types = dict.fromkeys(names, pa.large_string())
    return pa.Table.from_batches(list(formats.iter_batches(path, types, formats.LONG_BLOCK)))


def _made(dataset: Dataset, kept: np.ndarray) -> pa.Table:
    columns: dict[str, Any] = {}
    if dataset.ids is not None:
        columns["id"] = [dataset.ids[row] for row in kept]
    columns |= _inputs(dataset, kept)
    if dataset.y.max(initial=-1) >= 0:
        columns["label"] = [dataset.classes[y] if y >= 0 else None for y in dataset.y[kept]]
    columns["domain"] = [dataset.domains[at] for at in dataset.domain[kept]]
    if dataset.split is not None:
        columns["split"] = [SPLITS[at] if at >= 0 else None for at in dataset.split[kept]]
    return pa.table(columns)


def _inputs(dataset: Dataset, kept: np.ndarray) -> dict[str, Any]:
    files = dataset.raw.files()
    if files is not None:
        return {"file": [str(files[row]) for row in kept]}
    if dataset.raw.kind == "vector":
        values = dataset.raw.take(kept).numpy()
        return {f"x{i}": values[:, i] for i in range(values.shape[1])}
    if dataset.raw.kind != "text":
        return {"row": kept + 1}
    examples = dataset.raw.take(kept)
    match examples[0]:
        case str():
            return {"text": examples}
        case Sentence():
            tags = [None if each.tags is None else [dataset.classes[t] for t in each.tags] for each in examples]
            return {"tokens": [each.words for each in examples], "tags": tags}
        case Question():
            parts = ("context", "question", "answers", "starts")
            found = {part: [getattr(each, part) for each in examples] for part in parts}
            return {("answer_start" if key == "starts" else key): list(map(_listed, v)) for key, v in found.items()}
        case _:
            return {"premise": [each[0] for each in examples], "hypothesis": [each[1] for each in examples]}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
