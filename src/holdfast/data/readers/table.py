"""Read a table as a data set: one example per row, columns assigned by name.

The schema decides the roles and forms of the columns, batches of rows are checked cell by cell, and correct rows are
collected: source -> columns -> checked batches -> data set.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Raw
from holdfast.data.readers import formats
from holdfast.data.readers.arrow import TEXT
from holdfast.data.readers.cells import CellChecker
from holdfast.data.readers.codes import CodeColumn, coded_dataset
from holdfast.data.readers.collect import TableCollector
from holdfast.data.readers.columns import DEFAULT, ColumnFinder, ReadOptions, assign, check_carried
from holdfast.data.readers.features import NAME, kind_of
from holdfast.data.readers.formats import TableFile, open_table
from holdfast.data.readers.forms import Form, ModelColumns, Plan, default_form, kinds_of, stored_forms, trained_forms
from holdfast.data.readers.label_columns import is_list_of_texts, with_label_texts
from holdfast.data.readers.mixed import Mixtures, resolve_mixtures
from holdfast.data.readers.sources import TableSource, leave_out

METADATA = ("domain", "split", "id")  # roles of tables for tags, questions and texts without labels


def read_table(path: Path, options: ReadOptions = DEFAULT) -> Dataset:
    """Read a table file (csv, tsv, jsonl, parquet)."""
    (dataset,) = table_chunks(path, options)
    return dataset


def table_chunks(path: Path, options: ReadOptions = DEFAULT, *, rows: int | None = None) -> Iterator[Dataset]:
    """Stream a table file as data sets of at most `rows` rows, so that the file may be larger than the memory."""
    # read fast at first: small blocks and strict types; a file that needs more is read again, without the rows that
    # were yielded already
    path, done, block, lenient = Path(path), 0, formats.BLOCK, False
    _check_file(path)
    while True:
        try:
            for dataset, end in read_rows(open_table(path, block, lenient=lenient), options, rows=rows, skip=done):
                done = end
                yield dataset
            return
        except formats.LongRow:
            if block == formats.LONG_BLOCK:
                raise
            block = formats.LONG_BLOCK
        except formats.BadValue:
            if lenient:
                raise
            lenient = True


def read_rows(
    source: TableSource, options: ReadOptions, *, rows: int | None = None, skip: int = 0
) -> Iterator[tuple[Dataset, int]]:
    """Yield data sets of at most `rows` rows behind the first `skip` rows, and the number of rows read so far.

    A bad cell stops the stream, and is reported with all others at the end of the table.
    """
    with source.explained():
        # decide how to read all columns before the first row, so that all batches are read in one way
        plan = plan_columns(source, options, complete=rows is None)
        check_carried(source.where, source.schema.names, options.carry)
        types = _column_types(source, plan, options.carry) if isinstance(source, TableFile) else {}
        checker, chunk, end = CellChecker(source, plan, options.need), TableCollector(source, plan), 0
        for batch in source.batches(types, checker.add_damaged):
            # number of the first row of this batch, read before `clean` advances it
            start = checker.seen
            cleaned, positions = checker.clean(with_label_texts(batch, plan.roles, where=source.where, before=start))
            if checker.bad.total and not options.skip_bad:
                chunk = TableCollector(source, plan)  # read on to find all bad cells
                continue
            # positions (m,) of the good rows in the batch: begin behind the rows that an earlier attempt yielded
            at = int(np.searchsorted(positions, skip - start))
            while at < len(cleaned):
                # a full data set is yielded only when another row follows, so that the last one gets the notes
                if chunk.rows == rows:
                    yield chunk.dataset(), end
                    chunk = TableCollector(source, plan)
                size = len(cleaned) - at if rows is None else min(len(cleaned) - at, rows - chunk.rows)
                chunk.add(cleaned.slice(at, size))
                chosen = positions[at : at + size]
                if options.carry:
                    chunk.carried.append(batch.select(list(options.carry)).take(pa.array(chosen)))
                if options.skip_bad:
                    chunk.numbers.append(checker.file_rows(start + chosen))
                # `end` counts bad rows too, because `skip` counts rows of the file's batches
                at, end = at + size, start + int(chosen[-1]) + 1
        notes = [*plan.notes, *checker.finish(skip_bad=options.skip_bad)]
        if not checker.rows:
            raise BadInput(f"{source.where} has columns but no rows: write one row per example")
        if chunk.rows:
            yield chunk.dataset().with_notes(*notes), checker.seen


def plan_columns(source: TableSource, options: ReadOptions, *, complete: bool) -> Plan:
    """Assign columns to roles and detect how they are written.

    If the table is read completely, and not for a model, all of its rows decide how to read columns that mix numbers
    or dates with texts.
    """
    trained = trained_forms(options.columns, source.schema, typed=source.typed)
    forms, notes = source.text_forms()
    mixed = Mixtures({}, {})
    if complete and not isinstance(options.columns, ModelColumns):
        # one more pass over the table, but only over the columns in question
        candidates = _mixed_candidates(source, options, forms)
        mixed = resolve_mixtures(source.batches(dict.fromkeys(candidates, TEXT), leave_out), candidates)
        plain = [name for name, form in candidates.items() if source.typed and form.plain]
        notes |= {name: note for name, note in mixed.names.items() if name not in plain}
        forms = {name: form for name, form in (forms | mixed.forms).items() if name not in mixed.names}
    forms = (stored_forms(forms) if source.typed else forms) | trained  # where numbers have a type, texts are names
    # roles follow from the kinds, and only then it is known which columns are inputs whose form counts
    kinds = source.kinds() | kinds_of(forms) | dict.fromkeys(mixed.names, NAME)
    roles = assign(source.where, source.schema.names, options, kinds=kinds, sample=source.sample)
    forms = {name: forms[name] for name, kind in roles.features.items() if kind == kinds[name] and name in forms}
    return Plan(roles, forms, trained, [note for name, note in notes.items() if roles.features.get(name) == NAME])


def _mixed_candidates(source: TableSource, options: ReadOptions, forms: dict[str, Form]) -> dict[str, Form]:
    """Return the input columns of numbers and dates that are read as texts and whose kind the user has not chosen."""
    kinds = source.kinds() | kinds_of(forms)
    roles = assign(source.where, source.schema.names, options, kinds=kinds, sample=source.sample)
    if source.lenient and not source.typed:
        forms = {name: default_form(kind) for name, kind in kinds.items() if kind in ("number", "date")} | forms
    inputs = [name for name, kind in roles.features.items() if kind == kinds[name] and name not in roles.overridden]
    return {name: forms[name] for name in inputs if name in forms}


def _column_types(source: TableSource, plan: Plan, carry: Sequence[str] = ()) -> dict[str, pa.DataType]:
    """Return the columns to read and their types; texts are read as texts even if they look like numbers."""
    roles, inferred = plan.roles, {field.name: field.type for field in source.schema}
    # texts keep their spelling: 007 is not 7
    texts = roles.texts if roles.image is None else (roles.image,)
    types = {name: source.text_type(inferred[name]) for name in texts}
    for name, kind in roles.features.items():
        as_text = name in plan.trained or (not source.typed and (source.lenient or name in plan.forms))
        types[name] = TEXT if as_text else _feature_type(source, inferred[name], kind)
    for name in roles.labels or (roles.label,):
        if name is not None:
            is_list = is_list_of_texts(inferred[name])
            types[name] = inferred[name] if is_list else source.name_type(inferred[name])
    for name in (roles.domain, roles.split, roles.time):
        if name is not None:
            types.setdefault(name, source.name_type(inferred[name]))  # the time may be an input
    if roles.id is not None:
        types[roles.id] = source.name_type(inferred[roles.id], exact=True)
    # copied columns keep their exact values, unless they have a role as well
    types = {name: source.name_type(inferred[name], exact=True) for name in carry} | types
    for name in types:
        kind = inferred[name]
        if pa.types.is_nested(kind) and (name != roles.label or not is_list_of_texts(kind)):
            raise BadInput(f"{source.where}: column '{name}' holds {kind}: convert it to texts or numbers")
    return types


def _feature_type(source: TableSource, inferred: pa.DataType, kind: str) -> pa.DataType:
    """Return the type to read an input column of this kind in."""
    if kind == "number":
        return pa.bool_() if inferred == pa.bool_() else pa.float64()
    if kind == "boolean":
        return pa.bool_()
    if kind == "date":
        return inferred if pa.types.is_temporal(inferred) else TEXT
    return source.name_type(inferred)


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise BadInput(f"{path} {'is not a file' if path.exists() else 'does not exist'}: check the name of the table")
    if path.suffix.lower() not in formats.SUFFIXES:
        raise BadInput(f"{path} has the unknown suffix '{path.suffix}': use one of {', '.join(formats.SUFFIXES)}")
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty: write a header and one row per example")


def read_json_rows(
    rows: Sequence[Mapping[str, Any]], *, where: str, columns: Mapping[str, str] | None = None
) -> Dataset:
    """Read inputs and IDs from JSON objects in memory; labels, domains and other columns are ignored."""
    source = formats.JsonFile(Path(where))  # columns have the types of a file of these rows
    source.schema = formats.json_schema(rows)
    kinds = {field.name: kind_of(field.type) for field in source.schema}
    roles = assign(where, source.schema.names, ReadOptions(columns, need=()), kinds=kinds)
    roles = replace(roles, label=None, labels=(), domain=None, split=None, time=None, named=("features",))
    named = [name for name, kind in roles.features.items() if kind == "category"]
    # categories were read as texts in training, so 1 and true must be texts here too
    rows = [{**row, **{name: _as_name(row.get(name)) for name in named}} for row in rows]
    plan = Plan(roles)
    types = _column_types(source, plan) | dict.fromkeys(named, TEXT)
    if faults := [fault for number, row in enumerate(rows, 1) for fault in formats.row_faults(number, row, types)]:
        raise BadInput(f"{where}: {faults[0]}: {faults[0].fix}")
    collector, checker = TableCollector(source, plan), CellChecker(source, plan, (), hint="")
    try:
        columns_read = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()}
        collector.add(checker.clean(pa.record_batch(columns_read))[0])
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise BadInput(f"{where}: a value cannot be read ({str(error).splitlines()[0][:100]}): fix it") from error
    checker.finish(skip_bad=False)
    return collector.dataset()


def _as_name(value: Any) -> Any:
    """Return a category as a text; other values, such as lists, are reported later."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def column_finder(path: Path, columns: Mapping[str, str] | None) -> ColumnFinder:
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty: write one row per example")
    return ColumnFinder(str(path), formats.read_schema(path).names, columns)


def role_rows(path: Path, columns: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Yield the number of each row, its values by role, and those of the roles in `METADATA` alone."""
    for number, row in enumerate(formats.iter_rows(path, list(columns.values())), start=1):
        values = {role: row[name] for role, name in columns.items()}
        yield number, values, {role: values[role] for role in METADATA if role in values}


def unlabelled_dataset(path: Path, raw: Raw, metadata: Mapping[str, Sequence[Any]], **fields: Any) -> Dataset:
    """Build a data set without labels; `metadata` holds domain, split and id per example where present."""
    coded = {role: CodeColumn() for role in ("domain", "split") if role in metadata}
    for role, column in coded.items():
        # names of domains and splits are texts, also where a file has numbers
        texts = [None if value is None else str(value) for value in metadata[role]]
        missing = column.add(pa.array(texts, type=pa.string()), numbers=role == "split") < 0
        if role == "domain" and missing.any():
            raise BadInput(f"{path}: row {missing.argmax() + 1} has no domain: fill it in or remove the row")
    ids = [str(value) for value in metadata["id"]] if "id" in metadata else None
    return coded_dataset(path.stem, raw, coded, where=str(path), ids=ids, **fields)
