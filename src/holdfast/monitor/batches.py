"""Read the batches to check: the rows of a file by a column or by number, the files of a folder, and later labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import catalog
from holdfast.core.errors import BadInput, check_at_least
from holdfast.data.dataset import Dataset, encode
from holdfast.data.load import load_chunks
from holdfast.data.readers import formats
from holdfast.data.readers.columns import ColumnFinder
from holdfast.data.readers.excel import SUFFIX as EXCEL
from holdfast.folders.format import SavedModel
from holdfast.monitor.drift import MIN_ROWS
from holdfast.monitor.observe import targets_of

TABLES = (*formats.SUFFIXES, ".npz")
ALL = 1 << 62  # rows: read at once


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples that are checked together; ids are row numbers of the file if it has no ids."""

    name: str
    dataset: Dataset
    ids: list[str]
    y: np.ndarray  # (n,) classes of the model, -1 where unknown; numbers for a regression, nan where unknown

    @property
    def domains(self) -> dict[str, np.ndarray]:
        """Rows of each domain that occurs; empty if the data has no domains."""
        if self.dataset.domains == ("all",):
            return {}
        rows = {name: self.dataset.rows_of(name) for name in self.dataset.domains}
        return {name: each for name, each in rows.items() if len(each)}


def read_batches(
    saved: SavedModel, data: str | Path | Dataset, *, by: str | None = None, rows: int | None = None,
    columns: Mapping[str, str] | None = None, skip_bad: bool = False,
) -> tuple[list[Batch], tuple[str, ...]]:  # fmt: skip
    """Return the batches of a file or folder in order, and notes on how they were read.

    `by` names a column whose values are the batches; `rows` is the number of consecutive rows per batch, in the order
    of the time column if there is one. Each table in a folder of tables is one batch.
    """
    if by is not None and rows is not None:
        raise BadInput("--by and --rows both define batches: use one of them")
    if rows is not None:
        check_at_least(MIN_ROWS, rows=rows)
    files = batch_files(data)
    if files and (by is not None or rows is not None):
        raise BadInput(f"each file of {data} is one batch: remove --by and --rows, or name a single file")
    batches, notes = [], []
    for source in files or [data]:
        dataset = _read(saved, source, by, columns, skip_bad)
        notes += dataset.notes
        batches += _split(saved, dataset, _name(source), by, rows)
    if not batches:
        raise BadInput(f"{data} has no examples: pass a file with at least {MIN_ROWS} rows")
    return batches, tuple(dict.fromkeys(notes))


def batch_files(data: str | Path | Dataset) -> list[Path]:
    """Return the tables of a folder in alphabetic order; empty for other data."""
    if isinstance(data, Dataset) or not Path(data).expanduser().is_dir():
        return []
    return sorted(path for path in Path(data).expanduser().iterdir() if path.suffix.lower() in TABLES)


def _name(data: str | Path | Dataset) -> str:
    return data.name if isinstance(data, Dataset) else Path(data).expanduser().resolve().stem


def _read(
    saved: SavedModel, data: str | Path | Dataset, by: str | None, columns: Mapping[str, str] | None, skip_bad: bool
) -> Dataset:
    """Read one file; the column `by` is carried along."""
    if by is not None and (isinstance(data, Dataset) or Path(data).suffix.lower() not in (*formats.SUFFIXES, EXCEL)):
        raise BadInput(f"--by {by} names a column, but {data} is not a table: remove it, or use --rows")
    form = catalog.build("tasks", saved.task, options={}).data_form
    carry = () if by is None else (by,)
    chunks = load_chunks(
        data, rows=ALL, columns=saved.read_columns(columns), form=form, skip_bad=skip_bad, carry=carry
    )  # fmt: skip
    chunk = next(iter(chunks), None)
    if chunk is None or not len(chunk):
        raise BadInput(f"{data} has no examples: pass a file with at least {MIN_ROWS} rows")
    return saved.align(chunk)


def _split(saved: SavedModel, dataset: Dataset, name: str, by: str | None, rows: int | None) -> Iterator[Batch]:
    y = targets_of(saved, dataset)
    numbers = np.arange(1, len(dataset) + 1) if dataset.file_rows is None else dataset.file_rows
    ids = list(map(str, numbers.tolist())) if dataset.ids is None else list(dataset.ids)
    for own, members in _members(dataset, name, by, rows):
        subset = replace(dataset.subset(members), carried=None)
        yield Batch(own, subset, [ids[i] for i in members], y[members])


def _members(dataset: Dataset, name: str, by: str | None, rows: int | None) -> Iterator[tuple[str, np.ndarray]]:
    if by is not None:
        assert dataset.carried is not None
        column = dataset.carried.column(dataset.carried.column_names[0]).to_pylist()
        codes, names = encode([_batch_name(value) for value in column])
        for i, own in enumerate(names):
            yield own or "(empty)", np.flatnonzero(codes == i)
    elif rows is not None:
        order = np.arange(len(dataset)) if dataset.time is None else np.argsort(dataset.time, kind="stable")
        for start in range(0, len(order), rows):
            members = order[start : start + rows]
            yield f"{start + 1} to {start + len(members)}", members
    else:
        yield name, np.arange(len(dataset))


def _batch_name(value: Any) -> str:
    """Return the name of a batch; numbers of csv files are read as 1.0."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def read_labels(path: Path, *, columns: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the label per id of a table with these two columns; rows without a label are left out."""
    if not path.is_file():
        raise BadInput(f"no file {path}: name a table with the columns id and label after --labels")
    if path.suffix.lower() not in formats.SUFFIXES:
        raise BadInput(f"--labels {path} must be a table: use a file that ends in {', '.join(formats.SUFFIXES)}")
    named = {key: value for key, value in (columns or {}).items() if key in ("id", "label")}
    names = ColumnFinder(str(path), formats.open_table(path).schema.names, named).roles(("id", "label"))
    labels: dict[str, str] = {}
    for number, row in enumerate(formats.iter_rows(path, list(names.values())), start=1):
        id, label = (_text(row[names[role]]) for role in ("id", "label"))
        if not id:
            raise BadInput(f"{path}: row {number} has no id: fill it in or remove the row")
        if labels.get(id, label) != label:
            raise BadInput(f"{path}: row {number} has another label for the id '{id}' than an earlier row: remove one")
        if label:
            labels[id] = label
    return labels


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def with_labels(batches: list[Batch], labels: Mapping[str, str], saved: SavedModel) -> tuple[list[Batch], list[str]]:
    """Return the batches with labels that arrived later, joined by id, and notes on labels that were not used."""
    known = {name: i for i, name in enumerate(saved.classes)}
    is_number, used, strange = saved.predicts == "numbers", set(), set()
    joined = []
    for batch in batches:
        y = batch.y.copy()
        for i, id in enumerate(batch.ids):
            label = labels.get(id)
            if label is None:
                continue
            used.add(id)
            y[i] = _number(label) if is_number else known.get(label, -1)
            if not is_number and label not in known:
                strange.add(label)
        joined.append(replace(batch, y=y))
    unused, notes = len(labels) - len(used), []
    if labels and not used:
        raise BadInput("no id in --labels occurs in the data: join by the ids of the data, or its row numbers from 1")
    if unused:
        notes.append(f"{unused} labels in --labels have an id that does not occur in the data")
    if strange:
        notes.append(f"labels that the model does not have are not scored: {', '.join(sorted(strange)[:5])}")
    return joined, notes


def _number(label: str) -> float:
    try:
        return float(label)
    except ValueError:
        raise BadInput(f"--labels has the label '{label}', but the model predicts numbers: fix the label") from None
