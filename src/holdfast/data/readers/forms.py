"""Forms of the numbers and dates in columns of texts: detected in the first rows, stored with models, read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.data.readers.arrow import TEXT, is_text, trimmed
from holdfast.data.readers.columns import Roles
from holdfast.data.readers.numbers import (
    CURRENCIES,
    FORMS,
    ISO,
    MISSING,
    PERCENT,
    DateForm,
    NumberForm,
    detect_date_form,
    detect_form,
    looks_like_number,
)

READING = " is read as "  # in every note on how a file or column is read
SAMPLE = 1000  # rows that decide how the values of a column are written
_VALUES = {"decimal": (".", ","), "thousands": ("", ",", ".", "'", " "), "unit": ("", PERCENT, *CURRENCIES)}

Form = NumberForm | DateForm


class ModelColumns(dict[str, Any]):
    """Roles of the columns of a model, and how its training data writes numbers and dates."""

    def __init__(self, roles: Mapping[str, Any], forms: Mapping[str, Form]) -> None:
        super().__init__(roles)
        self.forms = dict(forms)


@dataclass(frozen=True)
class Plan:
    """How the columns of a table are read."""

    roles: Roles
    forms: Mapping[str, Form] = field(default_factory=dict)  # of numbers and dates in columns of texts
    trained: Mapping[str, Form] = field(default_factory=dict)  # those of a model's training data
    notes: Sequence[str] = ()


def trained_forms(columns: Mapping[str, Any] | None, schema: pa.Schema, *, typed: bool) -> dict[str, Form]:
    """Return the forms of a model for the columns of a file; those of texts only if the file has types for numbers.

    Dates that Arrow recognises are not ambiguous, so that they need no form.
    """
    forms = columns.forms if isinstance(columns, ModelColumns) else {}
    counts = Counter(schema.names) if forms else {}
    known = {name: schema.field(name).type for name in forms if counts.get(name) == 1}
    return {
        name: forms[name] for name, kind in known.items()
        if is_text(kind) or not (typed or pa.types.is_temporal(kind))
    }  # fmt: skip


def detect_forms(
    sample: pa.RecordBatch, names: Collection[str], *, decimal: str = "."
) -> tuple[dict[str, Form], dict[str, str]]:
    """Return the form of each text column whose values are mostly numbers or dates in the first rows.

    Also returns a note per other column that mixes numbers and texts, or several forms of either.
    """
    forms, notes = dict[str, Form](), dict[str, str]()
    for name in names:
        values = _filled(sample, name)
        form = detect_form(values, decimal=decimal) or detect_date_form(values)
        if form is not None:
            forms[name] = form
        elif mixture := _mixture(values, name):
            notes[name] = f"column '{name}' has {mixture}"
    return forms, notes


def _mixture(values: Sequence[str], name: str) -> str:
    """Describe values of which at least a tenth are numbers or dates; empty if there is nothing to report."""
    examples, rest = [], list(values)
    for form in FORMS:  # an ambiguous date counts for the first form only
        valid = form.parse(pa.array(rest, TEXT)).is_valid().to_pylist()
        if 10 * sum(valid) >= len(values) > 0:
            examples.append(rest[valid.index(True)])
        rest = [value for value, is_date in zip(rest, valid, strict=True) if not is_date]
    if len(examples) > 1:
        return f"dates in several forms, such as '{examples[0]}' and '{examples[1]}', and{READING}names: write one form"
    numbers, others = [], []
    for value in rest:
        (numbers if looks_like_number(value) else others).append(value)
    if 10 * len(numbers) < len(values) or not numbers:
        return ""
    if 2 * len(numbers) > len(values) or not others:
        different = next((value for value in numbers if _unit(value) != _unit(numbers[0])), numbers[-1])
        return f"numbers in several forms, such as '{numbers[0]}' and '{different}', and{READING}names: write one form"
    fix = f"write one kind, or list the texts with --column number={name}"
    return f"numbers and texts, such as '{numbers[0]}' and '{others[0]}', and{READING}names: {fix}"


def _unit(value: str) -> str:
    return value.strip("0123456789.,' ")


def _filled(sample: pa.RecordBatch, name: str) -> list[str]:
    """Return the first values of a text column that are not missing."""
    values = trimmed(sample.column(name)[:SAMPLE]).to_pylist()
    return [value for value in values if value is not None and value not in MISSING]


def default_form(kind: str) -> Form:
    """Return the form that Arrow reads itself."""
    return ISO if kind == "date" else NumberForm()


def kinds_of(forms: Mapping[str, Form]) -> dict[str, str]:
    """Return the kind of each column with a form."""
    return {name: "date" if isinstance(form, DateForm) else "number" for name, form in forms.items()}


def stored_forms(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Return the forms that a model must know: all that Arrow does not read itself."""
    return {name: form for name, form in forms.items() if not form.plain}


def to_json(forms: Mapping[str, Form]) -> dict[str, Any]:
    """Return forms as JSON: parts of numbers or the last day of January 2024, and the codes of missing values."""
    entries = {}
    for name, form in forms.items():
        entry = {"date": form.example} if isinstance(form, DateForm) else asdict(replace(form, missing=()))
        entry.pop("missing", None)
        entries[name] = entry | ({"missing": list(form.missing)} if form.missing else {})
    return entries


def from_json(value: Any) -> dict[str, Form]:
    """Return the forms that `to_json` wrote; raise TypeError for anything else."""
    if not isinstance(value, dict):
        raise TypeError("config.json has invalid forms of columns")
    dates, forms = {form.example: form for form in FORMS}, dict[str, Form]()
    for name, entry in value.items():
        entry = dict(entry) if isinstance(entry, dict) else {}
        missing = entry.pop("missing", [])
        valid = isinstance(missing, list) and all(isinstance(text, str) for text in missing)
        if valid and set(entry) == {"date"} and str(entry["date"]) in dates:
            forms[name] = replace(dates[str(entry["date"])], missing=tuple(missing))
        elif valid and set(entry) == set(_VALUES) and all(entry[k] in v for k, v in _VALUES.items()):
            forms[name] = NumberForm(**entry, missing=tuple(missing))
        else:
            raise TypeError(f"config.json has an invalid form of the column {str(name)[:40]!r}")
    return forms
