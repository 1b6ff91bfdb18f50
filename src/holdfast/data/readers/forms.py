"""Forms of the numbers and dates in columns of texts: detected in the first rows, stored with models, read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.data.readers.arrow import TEXT, compute, is_in, is_text, trimmed
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
    examined: Collection[str] | None = None  # columns of which all rows decided how they are read, None if no row does


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


MAX_CODES = 30  # distinct texts of a column that may be codes
FEW_NUMBERS = 50  # distinct numbers up to which a column with codes holds categories
MIN_ROWS = 5  # rows with the same text from which it is no typo,
MIN_SHARE = 0.01  # or the fraction of rows with texts that repeat
NAMES_ROWS = 20  # rows with different texts from which a column may hold names, not numbers,
NAMES_SHARE = 0.1  # and their fraction of the rows
_MAX_TEXTS = 10_000  # distinct texts that are counted


class Mixtures(NamedTuple):
    """Forms of the columns whose codes are missing values, and a note per column that holds names."""

    forms: dict[str, Form]
    names: dict[str, str]


def resolve_mixtures(batches: Iterable[pa.RecordBatch], forms: Mapping[str, Form]) -> Mixtures:
    """Decide how to read each column of texts with a form, from all of its rows.

    - At most 30 texts that repeat, one of them in 5 rows or all of them in 1% of the rows, are codes. Next to at most
      50 distinct numbers they are categories like the numbers, otherwise missing values.
    - Other texts in at least 10% of the rows, such as ticket numbers with letters, make the column one of names.
    - Rare texts change nothing, so that they are reported as bad cells.
    """
    tallies = {name: _Tally(form) for name, form in forms.items()}
    for batch in batches if tallies else ():
        for name, tally in tallies.items():
            tally.add(batch.column(name))
    result = Mixtures({}, {})
    for name, tally in tallies.items():
        codes, example = tally.codes(), tally.example()
        percent = 100 * tally.rest / max(1, tally.filled)
        share = f"{percent:.0f}%" if percent >= 1 else f"{tally.rest:,}"
        if tally.holds_categories(codes):
            cause = f"because {share} of its values are texts such as {example!r}"
            fix = f"--column number={name} accepts numbers only"
            result.names[name] = f"column '{name}'{READING}categories, {cause}; {fix}"
        elif codes and tally.many_numbers:
            result.forms[name] = replace(tally.form, missing=codes)
        elif tally.holds_names():
            cause = f"because {share} of its values are different texts such as {example!r}"
            result.names[name] = f"column '{name}'{READING}names, {cause}"
    return result


@dataclass
class _Tally:
    """Values of one column: its distinct numbers, and how often each text occurs that is not in the form."""

    form: Form
    numbers: set[Any] = field(default_factory=set)
    texts: Counter[str] = field(default_factory=Counter)
    filled: int = 0
    rest: int = 0  # rows with a text that is not in the form

    @property
    def many_numbers(self) -> bool:
        return len(self.numbers) > FEW_NUMBERS

    def add(self, column: Any) -> None:
        counted = trimmed(column).value_counts()
        values, counts = counted.field("values"), counted.field("counts").to_numpy()
        missing = compute.or_(values.is_null(), is_in(values, MISSING))
        parsed = self.form.parse(values)
        at = np.flatnonzero(compute.and_not(parsed.is_null(), missing))
        self.filled += int(counts[~np.asarray(missing)].sum())
        self.rest += int(counts[at].sum())
        if not self.many_numbers:
            self.numbers.update(parsed.drop_null().unique()[: FEW_NUMBERS + 1].to_pylist())
        if len(self.texts) < _MAX_TEXTS:
            self.texts.update(dict(zip(values.take(pa.array(at)).to_pylist(), counts[at].tolist(), strict=True)))

    def codes(self) -> tuple[str, ...]:
        """Return the texts that are codes, the most frequent first; empty if they are too rare or too different.

        A number in another form is a value to fix, not a code.
        """
        repeated = {text: n for text, n in self.texts.most_common() if n > 1 and not looks_like_number(text)}
        rows = sum(repeated.values())
        enough = max(repeated.values(), default=0) >= MIN_ROWS or rows >= MIN_SHARE * self.filled
        return tuple(repeated) if enough and len(repeated) <= MAX_CODES else ()

    def holds_categories(self, codes: tuple[str, ...]) -> bool:
        """Whether the codes are values like the numbers, of which there are few."""
        mixed_forms = any(map(looks_like_number, self.texts))
        return bool(codes) and not self.many_numbers and len(self.texts) <= MAX_CODES and not mixed_forms

    def holds_names(self) -> bool:
        """Whether many different texts show that the numbers are names as well."""
        texts = sum(n for text, n in self.texts.items() if not looks_like_number(text))
        return texts >= NAMES_ROWS and texts >= NAMES_SHARE * self.filled

    def example(self) -> str:
        return next((text for text, _ in self.texts.most_common() if not looks_like_number(text)), "")
