"""Read a table as a data set: one example per row, columns assigned by name.

The schema decides the roles and forms of the columns, batches of rows are checked cell by cell, and correct rows are
collected: source -> plan of the columns -> checked batches -> data set.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Raw
from holdfast.data.readers import formats
from holdfast.data.readers.arrow import TEXT, is_list_of_texts
from holdfast.data.readers.checks import CellChecker
from holdfast.data.readers.codes import CodeColumn, coded_dataset
from holdfast.data.readers.collect import TableCollector
from holdfast.data.readers.columns import DEFAULT, ColumnFinder, ReadOptions, assign, check_carried
from holdfast.data.readers.features import NAME, kind_of
from holdfast.data.readers.forms import (
    ModelColumns,
    Plan,
    default_form,
    kinds_of,
    resolve_mixtures,
    trained_forms,
)
from holdfast.data.readers.sources import TableSource, Types, leave_out

METADATA = ("domain", "split", "id")  # roles of tables for tags, questions and texts without labels


def read_table(path: Path, options: ReadOptions = DEFAULT) -> Dataset:
    """Read a table file (csv, tsv, jsonl, parquet)."""
    (dataset,) = table_chunks(path, options)
    return dataset


def table_chunks(path: Path, options: ReadOptions = DEFAULT, *, rows: int | None = None) -> Iterator[Dataset]:
    """Stream a table file as data sets of at most `rows` rows, so that the file may be larger than the memory."""
    return read_rows(formats.open_table(path), options, rows=rows)


def read_rows(
    source: TableSource, options: ReadOptions, *, rows: int | None = None, late: Collection[str] = ()
) -> Iterator[Dataset]:
    """Yield data sets of at most `rows` rows.

    A bad cell stops the stream, and is reported with all others at the end of the table. `late` are columns of numbers
    in which a first pass has met texts.
    """
    with source.explained():
        # decide how to read all columns before the first row, so that all batches are read in one way
        plan = plan_columns(source, options, complete=rows is None, late=late)
        types = _column_types(source, plan, options.carry)
        checker, chunk = CellChecker(source, plan, options.need), TableCollector(source, plan)
        for batch in source.batches(types, checker.add_damaged):
            # number of the first row of this batch, read before `clean` advances it
            start, at = checker.seen, 0
            cleaned, positions = checker.clean(batch)
            if checker.bad.total and not options.skip_bad:
                chunk = TableCollector(source, plan)  # read on to find all bad cells
                continue
            while at < len(cleaned):
                # a full data set is yielded only when another row follows, so that the last one gets the notes
                if chunk.rows == rows:
                    yield chunk.dataset()
                    chunk = TableCollector(source, plan)
                size = len(cleaned) - at if rows is None else min(len(cleaned) - at, rows - chunk.rows)
                chunk.add(cleaned.slice(at, size))
                chosen = positions[at : at + size]
                if options.carry:
                    chunk.carried.append(batch.select(list(options.carry)).take(pa.array(chosen)))
                if options.skip_bad:
                    chunk.numbers.append(checker.file_rows(start + chosen))
                at += size
        texts = [name for name in checker.bad.convertible if name not in plan.roles.overridden]
        if plan.examined is not None and (late := set(texts).difference(plan.examined)):
            yield from read_rows(source, options, late=late)
            return
        notes = [*plan.notes, *checker.finish(skip_bad=options.skip_bad)]
        if not checker.rows:
            raise BadInput(f"{source.where} has columns but no rows: write one row per example")
        if chunk.rows:
            yield chunk.dataset().with_notes(*notes)


def plan_columns(
    source: TableSource, options: ReadOptions, *, complete: bool, late: Collection[str] = ()
) -> Plan:  # fmt: skip
    """Assign columns to roles and detect how they are written.

    If the table is read completely, and not for a model, all of its rows decide how to read columns that mix numbers
    or dates with texts.
    """
    trained = trained_forms(options.columns, source.schema, typed=source.typed)
    forms, notes = source.text_forms()
    kinds = source.kinds() | kinds_of(forms)
    roles = assign(source.where, source.schema.names, options, kinds=kinds, sample=source.sample)
    check_carried(source.where, source.schema.names, options.carry)
    forms = {name: default_form(kinds[name]) for name in late} | forms
    names, examined = dict[str, str](), None
    if complete and not isinstance(options.columns, ModelColumns):
        # one more pass over the table, but only over the inputs in question, whose kind the user has not chosen
        examined = {name: forms[name] for name in roles.features if name in forms and name not in roles.overridden}
        mixed = resolve_mixtures(source.batches(dict.fromkeys(examined, TEXT), leave_out), examined)
        forms, names = forms | mixed.forms, mixed.names
        notes |= {name: note for name, note in names.items() if not (source.typed and examined[name].plain)}
    # where numbers have a type, texts are names
    forms = {name: form for name, form in forms.items() if name not in names and not (source.typed and form.plain)}
    forms |= trained
    kinds = source.kinds() | kinds_of(forms) | dict.fromkeys(names, NAME)
    features = {name: kind if name in roles.overridden else kinds[name] for name, kind in roles.features.items()}
    forms = {name: forms[name] for name, kind in features.items() if kind == kinds[name] and name in forms}
    notes = [note for name, note in notes.items() if features.get(name) == NAME]
    return Plan(replace(roles, features=features), forms, trained, notes, examined)


def _column_types(source: TableSource, plan: Plan, carry: Sequence[str] = ()) -> dict[str, pa.DataType]:
    """Return the columns to read and their types; copied columns and IDs keep their exact values."""
    roles = plan.roles
    single = (roles.image, None if roles.labels else roles.label, roles.domain, roles.split, roles.time)
    with_role = [*roles.texts, *roles.features, *roles.labels, *(name for name in single if name is not None)]
    copied = [*([] if roles.id is None else [roles.id]), *carry]
    names = list(dict.fromkeys([*with_role, *copied]))
    for name in names:
        kind = source.schema.field(name).type
        if pa.types.is_nested(kind) and (name != roles.label or not is_list_of_texts(kind)):
            raise BadInput(f"{source.where}: column '{name}' holds {kind}: convert it to texts or numbers")
    return source.types(names, plan, exact=set(copied).difference(with_role))


def read_json_rows(
    rows: Sequence[Mapping[str, Any]], *, where: str, columns: Mapping[str, str] | None = None
) -> Dataset:
    """Read inputs and IDs from JSON objects in memory; labels, domains and other columns are ignored."""
    source = formats.JsonRows(rows, where)
    kinds = {field.name: kind_of(field.type) for field in source.schema}
    roles = assign(where, source.schema.names, ReadOptions(columns, need=()), kinds=kinds)
    roles = replace(roles, label=None, labels=(), domain=None, split=None, time=None, named=("features",))
    named = [name for name, kind in roles.features.items() if kind == "category"]
    # categories were read as texts in training, so 1 and true must be texts here too
    source.first_rows = [{**row, **{name: _as_name(row.get(name)) for name in named}} for row in rows]
    plan = Plan(roles)
    types = _column_types(source, plan) | dict.fromkeys(named, TEXT)
    return read_planned(source, plan, types)


def read_planned(source: TableSource, plan: Plan, types: Types) -> Dataset:
    """Read all rows without labels in these types; a bad cell is an error."""
    collector, checker = TableCollector(source, plan), CellChecker(source, plan, (), hint="")
    with source.explained():
        for batch in source.batches(types):
            collector.add(checker.clean(batch)[0])
    checker.finish(skip_bad=False)
    return collector.dataset()


def _as_name(value: Any) -> Any:
    """Return a category as a text; other values, such as lists, are reported later."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def column_finder(path: Path, columns: Mapping[str, str] | None) -> ColumnFinder:
    return ColumnFinder(str(path), formats.open_table(path).schema.names, columns)


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
