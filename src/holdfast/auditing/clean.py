"""Write a table without duplicates: the original rows and columns of a table, else the fields of the data set."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from holdfast.core.inputs import Question, Sentence
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.readers import formats
from holdfast.data.write import write_tables

LINES = (".jsonl", ".ndjson")


def write_clean(out: Path, data: str | Path | Dataset, dataset: Dataset, rows: np.ndarray) -> Path:
    """Write these rows in file order; images are listed by file, graphs and arrays by row number."""
    path = None if isinstance(data, Dataset) else Path(data).expanduser()
    if path is not None and path.suffix.lower() in LINES and out.suffix == ".jsonl" and path.is_file():
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        if dataset.file_rows is not None or len(lines) == len(dataset):
            at = rows if dataset.file_rows is None else dataset.file_rows[rows] - 1
            return write_text(out, "".join(f"{lines[row]}\n" for row in at))
    table = original_rows(data, dataset, rows)
    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    if nested and out.suffix == ".csv":
        raise BadInput(f"column '{nested[0]}' contains lists, which csv cannot store: use a .jsonl or .parquet file")
    return write_tables(out, iter([table]))


def original_rows(data: str | Path | Dataset, dataset: Dataset, rows: np.ndarray) -> pa.Table:
    """Return these rows with all columns of the file they were read from, else with the fields of the data set."""
    path = None if isinstance(data, Dataset) else Path(data).expanduser()
    left_out: list[int] = []
    built = path is not None and path.suffix.lower() in LINES and dataset.file_rows is not None
    original = None if path is None or built else _original_table(path, left_out)
    if original is not None and dataset.file_rows is not None:
        numbers = dataset.file_rows[rows]
        return original.take(pa.array(numbers - 1 - np.searchsorted(np.sort(left_out), numbers)))
    if original is not None and len(original) == len(dataset):
        return original.take(pa.array(rows))
    return _built_table(dataset, rows)


def _original_table(path: Path, left_out: list[int]) -> pa.Table | None:
    """Return the complete table a data set was read from with unparsed values, or None if it was not a table.

    `left_out` receives the rows of a csv file, from 1, that cannot be split into values.
    """
    if path.suffix.lower() not in formats.SUFFIXES or not path.is_file():
        return None
    table = formats.open_table(path)
    if path.suffix.lower() in LINES:
        return pa.Table.from_pylist(list(formats.iter_rows(path, table.schema.names)))
    # csv is read as texts, so that values keep their spelling; texts in lists of parquet are read as dictionaries
    types = {field.name: field.type if table.typed else pa.large_string() for field in table.schema}
    batches = list(table.batches(types, on_invalid=lambda cells: left_out.append(cells[0].row)))
    return (
        pa.Table.from_batches(batches).cast(pa.schema(list(types.items()))) if batches else table.schema.empty_table()
    )


def _built_table(dataset: Dataset, rows: np.ndarray) -> pa.Table:
    columns: dict[str, Any] = {}
    if dataset.ids is not None:
        columns["id"] = [dataset.ids[row] for row in rows]
    columns |= _inputs(dataset, rows)
    if dataset.y.max(initial=-1) >= 0:
        columns["label"] = [dataset.label_text(row) if dataset.y[row] >= 0 else None for row in rows]
    columns["domain"] = [dataset.domains[index] for index in dataset.domain[rows]]
    if dataset.split is not None:
        columns["split"] = [SPLITS[index] if index >= 0 else None for index in dataset.split[rows]]
    return pa.table(columns)


def _inputs(dataset: Dataset, rows: np.ndarray) -> dict[str, Any]:
    files = dataset.raw.files()
    if files is not None:
        return {"file": [str(files[row]) for row in rows]}
    if dataset.raw.kind == "vector":
        values = dataset.raw.take(rows).numpy()
        return {f"x{i}": values[:, i] for i in range(values.shape[1])}
    if dataset.raw.kind != "text":
        return {"row": rows + 1}
    examples = dataset.raw.take(rows)
    match examples[0]:
        case str():
            return {"text": examples}
        case Sentence():
            tags = [None if s.tags is None else [dataset.classes[tag] for tag in s.tags] for s in examples]
            return {"tokens": [sentence.words for sentence in examples], "tags": tags}
        case Question():
            contexts, questions, answers, starts = zip(*examples, strict=True)
            spans = {"answers": list(map(list, answers)), "answer_start": list(map(list, starts))}
            return {"context": contexts, "question": questions, **spans}
        case _:
            return {"premise": [first for first, _ in examples], "hypothesis": [second for _, second in examples]}
