"""Which column of a table is the input, the label, the domain, the split, the time, the id; found by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.errors import BadInput, unknown
from holdfast.data.readers import formats

PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("message", "response"),
)
SYNONYMS: dict[str, tuple[str, ...]] = {
    "text": ("text", "sentence", "review", "content", "body", "comment", "tweet", "document", "message",
             "post", "review_text", "reviewtext", "utterance", "headline", "abstract"),
    "label": ("label", "labels", "gold_label", "target", "y", "class", "category", "sentiment", "polarity",
              "intent"),
    "domain": ("domain", "domains", "genre", "source", "env", "environment", "group", "hospital", "site",
               "center", "centre", "dataset"),
    "split": ("split", "fold", "partition", "set"),
    "time": ("time", "date", "timestamp", "datetime", "year"),
    "id": ("id", "idx", "guid", "uid", "uuid", "key", "index", "", "unnamed: 0", "__index_level_0__"),
}  # fmt: skip
# of tasks whose targets are no labels
STRUCTURED: dict[str, tuple[str, ...]] = {
    "tokens": ("tokens", "words"),
    "tags": ("tags", "ner_tags", "ner", "bio", "labels"),
    "context": ("context", "passage", "paragraph"),
    "question": ("question", "query"),
    "answers": ("answers", "answer"),
    "answer_start": ("answer_start", "answer_starts", "start"),
}
PLAIN = ("text", "premise", "hypothesis", "message", "response", "label", "domain", "split", "time", "id", "features")
KEYS = (*PLAIN, *STRUCTURED)


@dataclass(frozen=True, slots=True)
class Roles:
    """The name of the column in each role, or None; `texts` is empty when `features` are the input."""

    texts: tuple[str, ...]  # one, or the two of a pair
    features: tuple[str, ...]
    label: str | None
    domain: str | None
    split: str | None
    time: str | None
    id: str | None


def find(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The column with the first of these names that is there, whatever its case."""
    plain = {name.strip().lower(): name for name in reversed(names)}
    return next((plain[w] for w in wanted if w in plain), None)


class ColumnFinder:
    """Columns of one table: what the user named comes first, then what is called like its role."""

    def __init__(self, where: str, names: Sequence[str], columns: Mapping[str, str] | None) -> None:
        self.where, self.names, self.columns = where, list(names), dict(columns or {})
        for key in self.columns:
            if key not in KEYS:
                raise unknown("key of --column", key, KEYS)
        self.named = {name for key in self.columns for name in self._split(key)}

    def named_for(self, key: str) -> str | None:
        """The column the user gave for this key, None where there is none."""
        found = self._split(key)
        return found[0] if found else None

    def features(self) -> tuple[str, ...]:
        return tuple(self._split("features"))

    def called(self, wanted: Sequence[str]) -> str | None:
        """A column with one of these names that the user has not given another role."""
        return find([name for name in self.names if name not in self.named], wanted)

    def role(self, key: str) -> str | None:
        """The column for this key; an empty name from the user means: none, even if one is called so."""
        return self.named_for(key) if key in self.columns else self.called({**SYNONYMS, **STRUCTURED}[key])

    def missing(self, key: str) -> BadInput:
        taken = find([name for name in self.names if name in self.named], {**SYNONYMS, **STRUCTURED}[key])
        has = f"'{taken}' is named for something else" if taken else f"it has {listed(self.names)}"
        return BadInput(f"{self.where} has no {key} column: {has}; name it with --column {key}=NAME")

    def _split(self, key: str) -> list[str]:
        given = self.columns.get(key, "")
        parts = given.split(",") if key == "features" else [given]
        return [self._exact(key, part.strip()) for part in parts if part.strip()]

    def _exact(self, key: str, name: str) -> str:
        found = name if name in self.names else find(self.names, [name.lower()])
        if found is None:
            raise BadInput(
                f"{self.where} has no column '{name}': it has {listed(self.names)}; "
                f"mend --column {key}={self.columns[key]}"
            )
        return found


def assign(
    where: str,
    names: Sequence[str],
    *,
    numeric: Collection[str],
    columns: Mapping[str, str] | None,
    need: Collection[str],
) -> Roles:
    """Give every role its column, or say in one sentence which is missing and how to name it."""
    assert set(need) <= {"label", "domain"}, need
    finder = ColumnFinder(where, names, columns)
    label, domain, split, time, key = (finder.role(r) for r in ("label", "domain", "split", "time", "id"))
    for role, found in (("label", label), ("domain", domain)):
        if role in need and found is None:
            raise finder.missing(role)
    taken = [name for name in (label, domain, split, time, key) if name is not None]
    texts = _texts(finder)
    features = () if texts else finder.features()
    if not texts and not features:
        features = tuple(name for name in names if name in numeric and name not in taken)
    if not texts and not features:
        raise finder.missing("text")
    used = [*taken, *texts, *features]
    for name in used:
        if list(names).count(name) > 1:
            raise BadInput(f"{where} has two columns called '{name}': rename one of them")
        if used.count(name) > 1:
            raise BadInput(f"{where} uses its column '{name}' for two things: name others with --column KEY=NAME")
    return Roles(texts, features, label, domain, split, time, key)


def _texts(finder: ColumnFinder) -> tuple[str, ...]:
    """The text column or the two of a pair; none where features are the input."""
    columns = finder.columns
    for one, other in (("premise", "hypothesis"), ("message", "response")):
        first, second = finder.named_for(one), finder.named_for(other)
        if first and second:
            return first, second
        if first and one == "message":  # to be answered
            return (first,)
        if first or second:
            raise BadInput(f"{finder.where}: a pair needs both --column {one}=NAME and --column {other}=NAME")
    if "features" in columns:
        return ()
    if "text" in columns:
        named = finder.named_for("text")
        return (named,) if named else ()
    if plain := finder.called(["text"]):
        return (plain,)
    for pair in PAIRS:
        first, second = (finder.called([name]) for name in pair)
        if first and second:
            return first, second
    found = finder.called(SYNONYMS["text"])
    return (found,) if found else ()


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names for a sentence, the first dozen of them."""
    shown = ", ".join(map(repr, names[:most])) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


_SAMPLE = 1000  # rows that say what a column mostly holds
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


def mostly_numbers(path: Path, schema: pa.Schema, block: int) -> set[str]:
    """The columns that seem to be texts and hold more numbers than anything else; a typed file has none."""
    names = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    counts = Counter(schema.names)
    names = [name for name in names if counts[name] == 1]
    if not names or path.suffix.lower() == ".parquet":
        return set()
    if path.suffix.lower() in (".csv", ".tsv"):
        batches = formats.iter_batches(path, dict.fromkeys(names, pa.large_string()), block)
        first = next(batches, None)
        return set() if first is None else {name for name in names if _mostly(first.column(name)[:_SAMPLE])}
    rows = formats.first_rows(path)
    return {name for name in names if _more([row[name] for row in rows if row.get(name) is not None])}


def _mostly(column: Any) -> bool:
    """Of an arrow array of texts."""
    there = column.filter(pc.call_function("greater", [pc.call_function("binary_length", [column]), 0]))
    options = pc.MatchSubstringOptions(_NUMBER)
    right = pc.call_function("match_substring_regex", [there], options=options)
    return 2 * right.true_count > len(there)


def _more(values: list[Any]) -> bool:
    """Of values of JSON."""
    return 2 * sum(isinstance(each, int | float) and not isinstance(each, bool) for each in values) > len(values)
