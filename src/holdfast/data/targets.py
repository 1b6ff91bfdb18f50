"""Convert labels that were read as names to the targets of other tasks: numbers, sets of labels, ordered levels.

Readers encode every label column as names. The functions below convert the data set afterwards, for any reader.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset, is_finite
from holdfast.data.readers.numbers import detect_form, looks_like_number

FEW = 10  # distinct numeric labels up to which they are classes
MANY = 20  # above this number, numbers with fractions or in even steps are measurements
MAX_LEVELS = 30  # above this number, all numbers that are not ids of classes are measurements
MAX_CLASSES = 1000  # ids of classes
MAX_CODES = 30  # distinct texts among measurements that stand for missing labels
RARE = 3  # rows of a class, below which most classes are too rare to be learned
TABLES = ("table", "vector", "mixed")  # kinds of examples whose labels may be measurements with any integers
SEPARATORS = ("|", ";", ",")  # of several labels in one text, in the order in which they are tried
SHOWN = 10  # names in a message


def measurements(dataset: Dataset) -> str:
    """Describe the labels if they look like measurements and not like classes; empty if they do not.

    - Labels with texts, or numbers with leading zeros such as postal codes, are classes.
    - At most 10 distinct numbers are classes: ratings, digits, levels.
    - Integers that are numbered like class ids, 0 to n-1 or 1 to n, are classes if every class is about equally
      frequent, and for texts, images and graphs also otherwise; up to 1000 of them.
    - Other numbers are measurements if there are more than 30 distinct ones, if they are more than 20 with fractions or
      in even steps, such as years, or if most of them occur in fewer than 3 rows.
    """
    names = dataset.classes
    if dataset.targets is not None or len(names) <= FEW:
        return ""
    numbers, _ = _numbers(names)
    if not np.isfinite(numbers).all() or any(re.match(r"-?0\d", name) for name in names):
        return ""
    values, counts = np.sort(numbers), np.bincount(dataset.y[dataset.y >= 0], minlength=len(names))
    if _are_ids(values, counts, table=dataset.raw.kind in TABLES):
        return ""
    fractions = bool((values % 1 != 0).any())
    scale = len(names) > MANY and (fractions or np.ptp(np.diff(values)) == 0)
    if len(names) <= MAX_LEVELS and not scale and np.median(counts) >= RARE:
        return ""
    return f"{dataset.name} has {len(names):,} distinct numeric labels in {len(dataset):,} examples"


def _are_ids(values: np.ndarray, counts: np.ndarray, *, table: bool) -> bool:
    """Whether sorted numbers are ids of classes; `counts` are their rows, and tables also hold measurements."""
    if len(values) > MAX_CLASSES or np.median(counts) < RARE or (values % 1 != 0).any():
        return False
    balanced = counts.min() >= RARE and counts.max() <= 2 * counts.min()
    numbered = values[0] in (0, 1) and values[-1] - values[0] == len(values) - 1
    return bool(numbered and balanced) if table else bool(numbered or balanced)


def infer_task(dataset: Dataset) -> Dataset:
    """Return the data set as the targets of a regression if its labels are many numbers; note labels like red|blue."""
    if dataset.task or not dataset.classes:
        return dataset
    dataset, omitted = _without_codes(dataset)
    note = ""
    if summary := measurements(dataset):
        dataset = numeric_targets(dataset, task="regress")
        note = f"{summary}, so that the task is regress; with --task classify each number is a class"
    elif len(dataset.classes) > FEW and np.isfinite(_numbers(dataset.classes)[0]).all():
        count = len(dataset.classes)
        note = f"the {count} distinct numbers of the label are classes; --task regress predicts numbers"
    elif separator := separator_in(dataset):
        example = next(name for name in dataset.classes if separator in name)
        fix = "if they are several labels per example, use --task multilabel"
        note = f"labels such as '{example}' contain '{separator}' and are one class each; {fix}"
    return dataset.with_notes(omitted, note)


def _without_codes(dataset: Dataset) -> tuple[Dataset, str]:
    """Return the rows whose label is a number and a note, if other labels are codes such as 'N/D'; else all rows.

    Codes are at most 30 texts in at most 20% of the rows, next to measurements.
    """
    valid = np.asarray([is_finite(name) for name in dataset.classes], dtype=bool)
    codes = [name for name, number in zip(dataset.classes, valid, strict=True) if not number]
    is_code = np.append(~valid, False)[dataset.y]
    count = int(is_code.sum())
    if dataset.targets is not None or not 0 < len(codes) <= MAX_CODES or 5 * count > len(dataset):
        return dataset, ""
    names = [name for name, number in zip(dataset.classes, valid, strict=True) if number]
    rows = dataset.subset(np.flatnonzero(~is_code)).recoded(names, np.where(valid, np.cumsum(valid) - 1, -1))
    if not measurements(rows):
        return dataset, ""
    labels = f"{count:,} row{'s' * (count > 1)} with a label such as {codes[0]!r}"
    return rows, f"{labels} are left out, because the other labels are measurements; --task classify keeps all rows"


def numeric_targets(dataset: Dataset, *, task: str) -> Dataset:
    """Return the data set with its labels as numbers."""
    if dataset.targets is not None:
        return _checked_form(dataset, 1, "a number")
    numbers, form = _numbers(dataset.classes)
    for code, name in enumerate(dataset.classes):
        if not np.isfinite(numbers[code]):
            row = int((dataset.y == code).argmax()) + 1
            fix = "write a finite number, or use --task classify"
            raise BadInput(f"{dataset.name}: row {row} has the label '{name}', which is not a number: {fix}")
    values = np.asarray([*numbers, np.nan], dtype=np.float64)[dataset.y]
    converted = replace(dataset, y=np.where(dataset.y < 0, -1, 0), classes=(), targets=values, task=task)
    return converted.with_notes(f"labels are read as numbers with {form}" if form else "")


def _numbers(names: Sequence[str]) -> tuple[list[float], str]:
    """Return the labels as numbers, nan where a label is none, and their form if it is not plain: a decimal comma."""
    plain = [float(name) if is_finite(name) else np.nan for name in names]
    if np.isfinite(plain).all():
        return plain, ""
    if all(map(looks_like_number, names)):
        form = detect_form(names)
        if form is not None:
            return form.parse(pa.array(names)).to_numpy(zero_copy_only=False).tolist(), form.words
    return plain, ""


def separator_in(dataset: Dataset) -> str:
    """Return the separator if labels look like several labels per example, such as `red|blue`; empty if they do not.

    A comma also occurs inside names, so that the labels must combine fewer parts than there are labels.
    """
    for separator in SEPARATORS:
        joined = [name for name in dataset.classes if separator in name]
        sets = [_split(name, separator) for name in dataset.classes]
        recombined = len({label for labels in sets for label in labels}) < len(dataset.classes)
        several = bool(joined) and all(len(_split(name, separator)) > 1 for name in joined)
        if several and (recombined or separator != SEPARATORS[-1]):
            return separator
    return ""


def label_sets(dataset: Dataset, *, task: str, separator: str = "") -> Dataset:
    """Return the data set with a set of labels per example, separated in its label column; an empty label has none."""
    if dataset.targets is not None:
        return _checked_form(dataset, 2, "a set of labels")
    separator = separator or separator_in(dataset)
    sets = [_split(name, separator) for name in dataset.classes]
    names = tuple(sorted({label for labels in sets for label in labels}))
    if not names:
        raise BadInput(f"{dataset.name} has no labels: name the column with --column label=NAME")
    index = {name: i for i, name in enumerate(names)}
    table = np.zeros((len(sets) + 1, len(names)))
    for row, labels in enumerate(sets):
        table[row, [index[label] for label in labels]] = 1.0
    empty = int((dataset.y < 0).sum())
    fix = "name the separator with --set task.separator=TEXT, or use --task classify"
    single = f"no label contains a separator, so that every example has at most one label: {fix}"
    y = np.zeros(len(dataset), dtype=np.int64)
    return replace(dataset, y=y, classes=names, task=task, targets=table[dataset.y]).with_notes(
        f"{empty:,} rows have no label and count as examples without any of the labels" if empty else "",
        single if all(len(labels) < 2 for labels in sets) else "",
    )


def ordered_levels(dataset: Dataset, order: Sequence[str] | None, *, task: str) -> Dataset:
    """Return the data set with its classes in the order of the levels; numbers are ordered by value."""
    if dataset.targets is not None:
        raise BadInput(f"{dataset.name} has no class labels, which the task {task} needs: use the task {dataset.task}")
    shown = ", ".join(dataset.classes[:SHOWN]) + (", ..." if len(dataset.classes) > SHOWN else "")
    if order is None:
        if not all(map(is_finite, dataset.classes)):
            fix = "list the levels from low to high with --set task.order=LOW,...,HIGH"
            raise BadInput(f"the order of the labels {shown} is unknown: {fix}")
        return replace(dataset, task=task)
    names = tuple(str(name) for name in order)
    if len(set(names)) < len(names):
        raise BadInput(f"task.order names a level twice ({', '.join(names)}): name each one once")
    if set(names) != set(dataset.classes):
        missing = [name for name in dataset.classes if name not in names]
        fault = f"lacks the label '{missing[0]}'" if missing else "names levels that do not occur"
        raise BadInput(f"task.order {fault}: the labels of {dataset.name} are {shown}")
    return replace(dataset.recoded(names, [names.index(name) for name in dataset.classes]), task=task)


def _split(name: str, separator: str) -> list[str]:
    pieces = name.split(separator) if separator else [name]
    return [piece.strip() for piece in pieces if piece.strip()]


def _checked_form(dataset: Dataset, dimensions: int, form: str) -> Dataset:
    assert dataset.targets is not None
    if dataset.targets.ndim != dimensions:
        raise BadInput(f"{dataset.name} was converted for the task {dataset.task} and does not have {form} per example")
    return dataset
