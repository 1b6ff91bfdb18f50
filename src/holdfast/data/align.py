"""Align new data with a trained model: its feature columns, its classes and the domains it already knows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.core.table import Column, Schema, numeric_columns
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Table, Vectors
from holdfast.data.readers.columns import listed
from holdfast.data.readers.forms import Form, ModelColumns
from holdfast.data.splits import HeldOut, row_hashes


def model_columns(
    columns: Mapping[str, Any] | None, schema: Schema, learned: Sequence[str] | None,
    forms: Mapping[str, Form] | None = None, *, size: int | None = None,
) -> dict[str, Any] | None:  # fmt: skip
    """Return the roles to read data for a model with: those of the user, and for a table the kinds of its columns.

    `forms` describes how the training data writes numbers and dates; with a `size` in pixels, rows have
    an image, not a text.
    """
    if not schema:
        if learned:  # columns of numbers, also those that have a single value in the new data
            columns = {"number": tuple(learned), **(columns or {})}
        return None if columns is None and not forms and learned is None else ModelColumns(columns or {}, forms or {})
    kinds: dict[str, Any] = {"features": tuple(column.name for column in schema)}
    for column in schema:
        kinds[column.kind] = (*kinds.get(column.kind, ()), column.name)
    texts = [name for name in learned or () if name not in kinds["features"]]
    roles = {**kinds, **({"text" if size is None else "image": texts[0]} if texts else {}), **(columns or {})}
    return ModelColumns(roles, forms or {})


def align_features(dataset: Dataset, learned: Sequence[str] | None, schema: Schema = ()) -> Dataset:
    """Reorder feature columns to the model's, dropping others; features without names are matched by position.

    `schema` lists the columns of a model that was trained on a table.
    """
    columns = dataset.columns
    if dataset.raw.kind == "vector" and schema and columns is not None:
        rows = dataset.raw.take(np.arange(len(dataset)))
        numbers = tuple(Column(name, "number") for name in columns)
        dataset = replace(dataset, raw=Table(numbers, np.asarray(rows), np.zeros((len(rows), 0))))
    if schema or dataset.raw.kind not in ("table", "mixed"):
        return dataset if schema else _align_vectors(dataset, learned)
    if learned is None:
        raise BadInput(f"the model reads vectors without names, but {dataset.name} is a table: pass numbers only")
    return _align_vectors(_as_vectors(dataset, learned), learned)


def _as_vectors(dataset: Dataset, learned: Sequence[str]) -> Dataset:
    """Return the numeric columns of a table, for a model that reads vectors."""
    table = dataset.raw.take(np.arange(len(dataset)))
    names = [column.name for column in numeric_columns(table.schema)]
    numbers = np.asarray(table.numbers)
    for i, name in enumerate(names):
        missing = np.isnan(numbers[:, i])
        if name in learned and missing.any():
            fix = "fill it in, or fit the model on data with missing values"
            cell = f"row {int(missing.argmax()) + 1}, column '{name}'"
            raise BadInput(
                f"{dataset.name}: {cell} is missing, but the model was trained without missing values: {fix}"
            )
    return replace(dataset, raw=Vectors(numbers), columns=tuple(names))


def _align_vectors(dataset: Dataset, learned: Sequence[str] | None) -> Dataset:
    columns = dataset.columns
    if learned is None or columns is None or columns == tuple(learned):
        return dataset
    position = {name: i for i, name in enumerate(columns)}
    missing = [name for name in learned if name not in position]
    if missing:
        present = f" (it has {listed(columns)})" if columns else ""
        raise BadInput(f"{dataset.name} lacks columns of the model, {listed(missing)}{present}: rename or add columns")
    rows = np.asarray(dataset.raw.take(np.arange(len(dataset))))  # (n, d)
    return replace(dataset, raw=Vectors(rows[:, [position[name] for name in learned]]), columns=tuple(learned))


def with_classes(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Recode labels as indices into these classes; raise for a label that is not among them."""
    if not classes:
        return replace(dataset, y=np.full(len(dataset), -1, dtype=np.int64), classes=())
    known = {name: i for i, name in enumerate(classes)}
    recoded = dataset.recoded(classes, [known.get(name, -2) for name in dataset.classes])
    y = recoded.y
    if (y == -2).any():
        row = int((y == -2).argmax())
        label, shown = dataset.classes[dataset.y[row]], ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
        fix = f"use its classes ({shown}), or fit a new model"
        raise BadInput(f"{dataset.name}: row {row + 1} has the label '{label}', which the model does not have: {fix}")
    if (y < 0).any():
        raise BadInput(f"{dataset.name}: row {(y < 0).argmax() + 1} has no label: fill it in or remove the row")
    return recoded


def with_labels(dataset: Dataset, names: tuple[str, ...]) -> Dataset:
    """Return a data set with sets of these labels; raise for a label that is not among them."""
    assert dataset.targets is not None
    unknown = [name for name in dataset.classes if name not in names]
    if unknown:
        fix = f"use its labels ({', '.join(names[:10])}{', ...' if len(names) > 10 else ''}), or fit a new model"
        raise BadInput(f"{dataset.name} has the label '{unknown[0]}', which the model does not have: {fix}")
    return dataset.recoded(names, [names.index(name) for name in dataset.classes])


def one_domain(dataset: Dataset, name: str | None, known: Collection[str]) -> Dataset:
    """Return the rows of the domain to learn: the named one of several, or all rows under one name."""
    present = [domain for i, domain in enumerate(dataset.domains) if (dataset.domain == i).any()]
    if not present:
        raise BadInput(f"{dataset.name} has no examples to learn from")
    if len(present) > 1:
        listing = ", ".join(present[:10])
        if name is None:
            raise BadInput(f"{dataset.name} has several domains ({listing}): choose one with --domain NAME")
        if name not in present:
            raise BadInput(f"no domain '{name}' in {dataset.name}; its domains: {listing}")
        dataset = dataset.subset(dataset.rows_of(name))
    unnamed = present == ["all"]
    chosen = name or (dataset.name if unnamed else present[0])
    if chosen in known:
        fix = "name the new one with --domain NAME" if unnamed else "rename the domain of its rows"
        raise BadInput(f"this model already knows the domain '{chosen}': {fix}")
    if chosen not in present and not unnamed:
        raise BadInput(f"no domain '{chosen}' in {dataset.name}; its domain is {present[0]}: remove --domain to use it")
    return replace(dataset.as_one_domain(chosen), time=None)


def without_held_out(dataset: Dataset, held: HeldOut | None) -> tuple[Dataset, int]:
    """Drop rows that are held-out examples of earlier domains; return the rest and the number of dropped rows."""
    if held is None:
        return dataset, 0
    known = {value for hashes in held.hashes.values() for value in hashes}
    rows = np.arange(len(dataset))
    fresh = np.asarray([value not in known for value in row_hashes(dataset, rows)], dtype=bool)
    if not fresh.any():
        raise BadInput(f"every example of {dataset.name} is a held-out example of an earlier domain: use new examples")
    return (dataset if fresh.all() else dataset.subset(rows[fresh])), int((~fresh).sum())
