"""Decide how to read columns of numbers or dates in which texts repeat: as categories, or with the texts as missing.

Real tables mix both: '5+' next to 1, 2, 3 and 4 is one more category, and 'N/D' in a measurement is a missing value. A
text that occurs once is probably a typo, which is reported as a bad cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.data.readers.arrow import compute, is_in, trimmed
from holdfast.data.readers.forms import READING, Form
from holdfast.data.readers.numbers import MISSING, looks_like_number

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
