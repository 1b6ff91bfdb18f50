"""Data on its way in: read -> columns -> task -> check -> Dataset.

`load_data` reads any source: a published name, a file, a folder or a DataFrame; settings may follow the name after an
@. `training_data` continues: labels become the targets of a task, and data that cannot train it is an error. Each stage
takes a data set and returns one; what the user must know is a note of the data set.
"""

import difflib
import inspect
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from holdfast.core.errors import BadInput, check_known, laboratory_error
from holdfast.core.settings import without_retired
from holdfast.data.copies import copies_note
from holdfast.data.dataset import Dataset
from holdfast.data.readers import formats
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.corpus import read_corpus
from holdfast.data.readers.excel import SUFFIX as EXCEL
from holdfast.data.readers.excel import read_excel
from holdfast.data.readers.graphs import SUFFIXES as GRAPH_SUFFIXES
from holdfast.data.readers.graphs import holds_graphs, read_graphs
from holdfast.data.readers.images import read_images
from holdfast.data.readers.in_memory import Source, read_frame
from holdfast.data.readers.molecules import read_molecules, smiles_column
from holdfast.data.readers.npz import read_arrays
from holdfast.data.readers.questions import read_questions
from holdfast.data.readers.tables import read_table, table_chunks
from holdfast.data.readers.tags import read_tags
from holdfast.data.registry import READERS, Reader
from holdfast.data.shifts import Shift, apply_shift
from holdfast.data.targets import infer_task
from holdfast.data.unlabelled import EMPTY_LABELS, add_unlabelled

FORMS: dict[str, Reader] = {"tags": read_tags, "questions": read_questions, "corpus": read_corpus}
TABLES = (read_table, read_molecules, read_excel, read_frame)  # readers that can leave rows out


class Target(Protocol):
    """The parts of a task that decide how its data is read."""

    data_form: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    predicts: ClassVar[str]

    def convert(self, dataset: Dataset) -> Dataset: ...


def training_data(
    data: Source, target: Target, *, inferred: bool, columns: Mapping[str, str] | None = None,
    data_dir: Path | None = None, examples: int | None = None, unlabelled: Source | None = None,
    empty_labels: str = EMPTY_LABELS[0], skip_bad: bool = False,
) -> Dataset:  # fmt: skip
    """Read data, convert its labels for a task and check that a model can be trained on it.

    With `inferred`, numeric labels with many values are the targets of a regression instead. `examples` limits the
    examples per domain. `unlabelled` is a source of examples without labels to adapt to; with
    `empty_labels="unlabelled"` so are the rows whose label is empty.
    """
    required = empty_labels == EMPTY_LABELS[0]
    need = [role for role in target.needs if required or role != "label"]
    inputs = {role: name for role, name in (columns or {}).items() if role not in ("label", "split")}
    form = target.data_form
    dataset = load_data(data, columns=columns, need=need, data_dir=data_dir, form=form, skip_bad=skip_bad)
    dataset = infer_task(dataset) if inferred else target.convert(dataset)
    dataset = dataset if required else dataset.with_unlabelled_rows()
    dataset = dataset.checked(labels=bool(target.predicts))
    dataset = dataset if examples is None else dataset.limited(examples)
    dataset = dataset.with_notes(copies_note(dataset))
    if unlabelled is None:
        return dataset
    extra = load_data(unlabelled, columns=inputs, need=(), data_dir=data_dir, form=form, skip_bad=skip_bad)
    return add_unlabelled(dataset, extra if examples is None else extra.limited(examples))


def load_data(
    data: Source, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("label", "domain"),
    data_dir: Path | None = None, form: str = "table", known: Mapping[str, Reader] = READERS, skip_bad: bool = False,
    carry: Sequence[str] = (),
) -> Dataset:  # fmt: skip
    """Load a data set.

    Args:
        data: a path, the name of a published data set, a table of pandas, pyarrow or polars, or a Dataset, which is
            returned as it is.
            `NAME@KEY=VALUE,KEY=VALUE` passes settings to the reader; `shift=size` splits any graphs by that shift.
        columns: role to column name, for example `{"label": "stars"}`.
        need: roles that must be present.
        data_dir: folder with the files of published data sets.
        form: what the task reads: `table`, `tags`, `questions` or `corpus`.
        known: readers of named data sets.
        skip_bad: leave rows of a table with bad cells out, with a note; else they are an error.
        carry: columns of a DataFrame or an Excel file that the data set stores unchanged.
    """
    if isinstance(data, Dataset):
        return data
    source, text, settings = _split_settings(data, known)
    shift = settings.pop("shift", None)
    if shift is not None:  # the shift defines the domains
        need = [role for role in need if role != "domain"]
    reader = _reader(source, ReadOptions(columns, need, skip_bad, carry), form=form, known=known, data_dir=data_dir)
    parameters = inspect.signature(reader).parameters.values()
    accepted = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in reader.keywords]
    for key in settings:
        check_known(f"setting of {source}", key, [*accepted, "shift"])
    dataset = reader(**settings)
    if shift is not None:
        dataset = apply_shift(dataset, str(shift))
    return replace(dataset, name=f"{dataset.name}@{text}") if text else dataset


def load_chunks(
    data: str | Path | Dataset, *, rows: int, columns: Mapping[str, str] | None = None, form: str = "table",
    skip_bad: bool = False, carry: Sequence[str] = (),
) -> Iterator[Dataset]:  # fmt: skip
    """Load examples without labels or domains, `rows` at a time; a table is streamed from disk.

    `carry` names columns of a table that the data sets store unchanged, and `skip_bad` leaves rows with bad cells out.
    """
    if not isinstance(data, Dataset):
        source, text, _ = _split_settings(data, READERS)
        reader = _reader(source, ReadOptions(columns, (), skip_bad, carry), form=form)
        if reader.func is read_table and not text:
            yield from table_chunks(*reader.args, rows=rows)
            return
    elif carry:
        raise _no_columns(data.name)
    dataset = load_data(data, columns=columns, need=(), form=form, skip_bad=skip_bad, carry=carry)
    for start in range(0, len(dataset), rows):
        yield dataset.subset(np.arange(start, min(start + rows, len(dataset))))


def _no_columns(data: str | Path) -> BadInput:
    """Return the error for columns to copy from data without columns."""
    return BadInput(f"--with copies columns of a table in a csv, xlsx, jsonl or parquet file, not of {data}: remove it")


def _reader(
    data: Any, options: ReadOptions, *, form: str, known: Mapping[str, Reader] = READERS, data_dir: Path | None = None
) -> partial[Dataset]:
    """Return the reader for a name, a path or a DataFrame, with everything but its settings bound."""
    if not isinstance(data, str | Path):
        if form != "table":
            kinds = "a path, the name of a data set or a Dataset"
            raise BadInput(f"data must be {kinds}, got a {type(data).__name__}: write it to a file")
        reader = partial(read_frame, data, options)
    elif isinstance(data, str) and data in known:
        reader = partial(known[data], data_dir=data_dir)
    else:
        path = Path(data).expanduser()
        if data == "":  # as a path, this would be the current folder
            raise BadInput("the data has an empty name: pass a file, a folder or the name of a data set")
        if not path.exists():
            if absent := laboratory_error("data set", str(data)):
                raise absent
            near = difflib.get_close_matches(str(data), known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "check the path;"
            fix = f"{hint} `holdfast list datasets` lists all names"
            raise BadInput(f"'{data}' is not a file, a folder or a data set: {fix}")
        reader = _path_reader(path, options, form)
    if options.skip_bad and reader.func not in TABLES:
        raise BadInput(f"--skip-bad leaves rows of a table out, but {data} is not such a table: remove the option")
    if options.carry and reader.func not in (read_table, read_excel, read_frame):
        raise _no_columns(data)
    return reader


def _path_reader(path: Path, options: ReadOptions, form: str) -> partial[Dataset]:
    suffix = path.suffix.lower()
    if form in FORMS:
        return partial(FORMS[form], path, options)
    graphs = (path.is_dir() or suffix in GRAPH_SUFFIXES) and holds_graphs(path)
    if graphs or path.is_dir():
        if options.columns:
            kind = "graphs" if graphs else "images"
            raise BadInput(f"{path} holds {kind}, which have no columns: remove --column")
        return partial(read_graphs, path) if graphs else partial(read_images, path, options)
    if suffix in (EXCEL, ".npz"):
        return partial(read_excel if suffix == EXCEL else read_arrays, path, options)
    smiles = smiles_column(path, options.columns)
    if smiles is not None:
        return partial(read_molecules, path, smiles, options)
    if suffix in formats.SUFFIXES:
        return partial(read_table, path, options)
    suffixes = ", ".join((*formats.SUFFIXES, EXCEL, ".npz", *GRAPH_SUFFIXES))
    fix = f"use one of {suffixes}, or a folder of images or graphs"
    raise BadInput(f"{path} has the unknown suffix '{path.suffix}': {fix}")


def _split_settings(data: Source, known: Collection[str]) -> tuple[Any, str, dict[str, Any]]:
    """Split NAME@SETTINGS at the last @, unless a file or data set has the complete name, and parse the settings."""
    if not isinstance(data, str) or "@" not in data or data in known or Path(data).expanduser().exists():
        return data, "", {}
    name, _, text = data.rpartition("@")
    settings: dict[str, Any] = {}
    for pair in text.split(",") if text else ():
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise BadInput(f"'{pair}' after the @ is not a setting: write KEY=VALUE, such as nci1@shift=size")
        try:  # values are JSON where possible, else strings
            settings[key.strip()] = json.loads(value)
        except json.JSONDecodeError:
            settings[key.strip()] = value.strip()
    return name, text, without_retired(Shift, settings)
