"""Assign the columns of a table to roles (text, label, domain, ...) by name."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.core.errors import BadInput, check_known
from holdfast.core.table import KINDS
from holdfast.data.readers.arrow import compute, decoded, is_text

PAIRS = (
    ("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"),
    ("text_a", "text_b"), ("text1", "text2"), ("message", "response"),
)  # fmt: skip
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
# roles of tasks whose targets are not class labels
STRUCTURED: dict[str, tuple[str, ...]] = {
    "tokens": ("tokens", "words"),
    "tags": ("tags", "ner_tags", "ner", "bio", "labels"),
    "context": ("context", "passage", "paragraph"),
    "question": ("question", "query"),
    "answers": ("answers", "answer"),
    "answer_start": ("answer_start", "answer_starts", "start"),
}
SEVERAL = ("features", *KINDS, "ignore", "labels")  # keys that take a list of columns
JOINED = "the labels"  # name of the label column that is joined from several columns of 0 and 1
PLAIN = (
    "text",
    "image",
    "premise",
    "hypothesis",
    "message",
    "response",
    "label",
    "domain",
    "split",
    "time",
    "id",
    *SEVERAL,
)
KEYS = (*PLAIN, *STRUCTURED)
# columns that are suggested as the domain
YEARS = (1800, 2100)
MAX_DOMAINS = 1000  # distinct values of a domain column
MIN_ROWS = 5  # mean rows per domain
LIKELY = (3, 50)  # numbers of domains that are most common
SUGGESTED = 3
_DOMAIN_NAMES = re.compile(
    r"(^|[_\W])(year|decade|quarter|month|country|state|region|city|site|hospital|school|source|group)([_\W]?(id|name|code))?$"
)

Sample = Callable[[], pa.RecordBatch | None]  # the first rows of a table


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How the columns and rows of data are read."""

    columns: Mapping[str, Any] | None = None  # role to column name
    need: Collection[str] = ("label", "domain")  # roles that must be present
    skip_bad: bool = False  # leave rows of a table with bad cells out, with a note; else they are listed in one error
    carry: Sequence[str] = ()  # columns of a table that the data set stores unchanged


DEFAULT = ReadOptions()


@dataclass(frozen=True, slots=True)
class Roles:
    """The column name per role, or None; the input is `texts`, `features` or both."""

    texts: tuple[str, ...]  # one column, or two for pairs
    features: Mapping[str, str]  # name to kind
    label: str | None = None  # JOINED if it is joined from the columns `labels`
    labels: tuple[str, ...] = ()
    domain: str | None = None
    split: str | None = None
    time: str | None = None
    id: str | None = None
    image: str | None = None  # column of image files, next to the features or instead of them
    named: Collection[str] = ()  # roles whose columns the user named
    chosen: Collection[str] = ()  # features that the user named
    overridden: Collection[str] = ()  # features whose kind the user named
    unused: Mapping[str, str] = field(default_factory=dict)  # name to reason


def find(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Return the column that matches the first possible wanted name, ignoring case."""
    by_lowercase = {name.strip().lower(): name for name in reversed(names)}
    return next((by_lowercase[word] for word in wanted if word in by_lowercase), None)


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Format names for an error message, at most `limit` of them."""
    shown = ", ".join(map(repr, names[:limit])) or "none"
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def check_carried(where: str, names: Sequence[str], carry: Sequence[str]) -> None:
    """Raise unless the table has each of the columns that are only copied exactly once."""
    for name in carry:
        if names.count(name) != 1:
            problem = f"has no column '{name}'" if name not in names else f"has two columns named '{name}'"
            raise BadInput(f"{where} {problem}: it has {listed(names)}; fix --with")


class ColumnFinder:
    """Find columns of one table: names passed by the user take precedence over conventional names."""

    def __init__(
        self, where: str, names: Sequence[str], columns: Mapping[str, str] | None, sample: Sample | None = None
    ) -> None:
        self.where, self.names, self.columns, self.sample = where, list(names), dict(columns or {}), sample
        for key in self.columns:
            check_known("key of --column", key, KEYS)
        self.named = {name for key in self.columns for name in self.requested(key)}

    def requested(self, key: str) -> list[str]:
        """Return the columns that the user named for this key; several only for the keys in `SEVERAL`."""
        value = self.columns.get(key, "")
        names = [value] if key not in SEVERAL else value.split(",") if isinstance(value, str) else value
        return [self._exact(key, name.strip()) for name in names if name.strip()]

    def conventional(self, wanted: Sequence[str]) -> str | None:
        """Return a column with one of these names that the user has not assigned to another role."""
        return find([name for name in self.names if name not in self.named], wanted)

    def role(self, key: str) -> str | None:
        """Return the column for this key; an empty name from the user means that there is none."""
        if key in self.columns:
            return next(iter(self.requested(key)), None)
        return self.conventional({**SYNONYMS, **STRUCTURED}[key])

    def roles(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, str]:
        """Return the column of each key that has one; raise for a required key without one."""
        columns = {key: self.role(key) for key in (*required, *optional)}
        for key in required:
            if columns[key] is None:
                raise self.missing(key)
        return {key: name for key, name in columns.items() if name is not None}

    def ignored(self) -> list[str]:
        """Return the columns that the user left out, by `ignore=NAME` or by an empty name for their usual role."""
        emptied = [key for key, value in self.columns.items() if not value and key in SYNONYMS]
        usual = [self.conventional(SYNONYMS[key]) for key in emptied]
        return [*self.requested("ignore"), *(name for name in usual if name is not None)]

    def missing(self, key: str) -> BadInput:
        """Return the error for a required column that was not found."""
        taken = find([name for name in self.names if name in self.named], {**SYNONYMS, **STRUCTURED}[key])
        reason = f"'{taken}' has another role" if taken else f"it has {listed(self.names)}"
        domains = self._domains() if key == "domain" else ""
        return BadInput(f"{self.where} has no {key} column: {reason}; name it with --column {key}=NAME{domains}")

    def _domains(self) -> str:
        """Return the columns that could be the domain, for an error message."""
        batch = None if self.sample is None else self.sample()
        if batch is None:
            return ""
        others = {name for key in ("label", "split", "id") if (name := self.role(key)) is not None}
        names = domain_columns(batch, leave_out=others | self.named)
        return f", for example --column domain={' or domain='.join(names)}" if names else ""

    def _exact(self, key: str, name: str) -> str:
        column = name if name in self.names else find(self.names, [name.lower()])
        if column is None and not isinstance(self.columns[key], str):  # the columns of a model
            fix = f"it has {listed(self.names)}; rename or add columns"
            raise BadInput(f"{self.where} lacks the column '{name}' of the model: {fix}")
        if column is None:
            fix = f"fix --column {key}={self.columns[key]}"
            raise BadInput(f"{self.where} has no column '{name}': it has {listed(self.names)}; {fix}")
        return column


def assign(
    where: str, names: Sequence[str], options: ReadOptions, *, kinds: Mapping[str, str], sample: Sample | None = None
) -> Roles:
    """Assign a column to each role; raise if a needed one is missing or a column has two roles.

    `kinds` maps names to the kinds that their types suggest. Without a text column, all columns with a kind that have
    no other role are the input, as is a column with a usual name of the time, which orders the rows as well. `sample`
    returns the first rows, from which an error suggests columns.
    """
    assert set(options.need) <= {"label", "domain"}, options.need
    finder = ColumnFinder(where, names, options.columns, sample)
    labels = _label_columns(finder)
    needed = [role for role in options.need if role != "label" or not labels]
    roles = finder.roles(needed, ("label", "domain", "split", "time", "id"))
    image = next(iter(finder.requested("image")), None)
    orders = roles.get("time") if "time" not in finder.columns else None  # may be an input, too
    taken = [*(name for name in roles.values() if name != orders), *labels, *([] if image is None else [image])]
    texts = _text_columns(finder)
    if image is not None and texts:
        fix = "remove one of them; --column text= leaves a text out"
        raise BadInput(f"{where}: rows have the text {texts[0]!r} and the image '{image}', but one is possible: {fix}")
    overridden = {name: kind for kind in KINDS for name in finder.requested(kind)}
    requested, ignored = finder.requested("features"), finder.ignored()
    chosen = [*requested, *(name for name in overridden if name not in requested)]
    inputs = chosen
    if not texts and not requested:
        inputs = [n for n in names if n in overridden or (kinds[n] and n not in taken and n not in ignored)]
    features = {name: overridden.get(name) or kinds[name] for name in inputs}
    if not texts and not features and image is None:
        raise finder.missing("text")
    used, named = [*taken, *texts, *inputs], Counter(names)
    roles_of = Counter(used)
    for name in used:
        if named[name] > 1:
            raise BadInput(f"{where} has two columns named '{name}': rename one of them")
        if roles_of[name] > 1:
            raise BadInput(f"{where} uses its column '{name}' for two roles: name others with --column KEY=NAME")
    with_role = {*used, *ignored, *roles.values()}
    left_out = [name for name in names if name not in with_role] if not requested else []
    unused = {name: _reason(name, kinds, texts) for name in left_out}
    if labels:
        roles["label"] = JOINED
    return Roles(
        texts, features, **roles, image=image, labels=labels, named=set(finder.columns), chosen=chosen,
        overridden=overridden, unused=unused,
    )  # fmt: skip


def _label_columns(finder: ColumnFinder) -> tuple[str, ...]:
    """Return the columns of 0 and 1 that are the labels; another label column is then ignored."""
    labels = finder.requested("labels")
    if not labels:
        return ()
    if finder.columns.get("label"):
        fix = "remove one of them"
        raise BadInput(f"{finder.where}: --column label= and --column labels= both name the labels: {fix}")
    if wrong := [name for name in labels if "|" in name or ";" in name]:
        raise BadInput(f"{finder.where}: the label column '{wrong[0]}' contains | or ;: rename it")
    finder.columns["label"] = ""
    return tuple(labels)


def _reason(name: str, kinds: Mapping[str, str], texts: Sequence[str]) -> str:
    """Return why a column without a role is not used."""
    if not kinds[name]:
        return "neither numbers nor texts"
    return f"the input is {' and '.join(map(repr, texts))}; --column features={name} adds it"


def _text_columns(finder: ColumnFinder) -> tuple[str, ...]:
    """Return the text column or the two columns of a pair; empty if features are the input."""
    columns = finder.columns
    for one, other in (("premise", "hypothesis"), ("message", "response")):
        first, second = finder.requested(one), finder.requested(other)
        if first and (second or one == "message"):  # a message alone is to be answered
            return (*first, *second)
        if first or second:
            raise BadInput(f"{finder.where}: a pair needs both --column {one}=NAME and --column {other}=NAME")
    if "text" in columns:
        return tuple(finder.requested("text"))
    if "features" in columns:
        return ()
    if plain := finder.conventional(["text"]):
        return (plain,)
    for pair in PAIRS:
        first, second = (finder.conventional([name]) for name in pair)
        if first and second:
            return first, second
    column = finder.conventional(SYNONYMS["text"])
    return (column,) if column else ()


def domain_columns(sample: pa.RecordBatch, *, leave_out: set[str]) -> list[str]:
    """Return up to three columns with few values that repeat: years and usual names first, then other categories."""
    ranked = []
    for at, name in enumerate(sample.schema.names):
        if name in leave_out or sample.schema.names.count(name) > 1:
            continue
        rank = _rank(name, sample.column(at))
        if rank is not None:
            ranked.append((rank, at, name))
    return [name for _, _, name in sorted(ranked)[:SUGGESTED]]


def _rank(name: str, column: Any) -> int | None:
    """Return how likely a column is the domain, 0 is the most likely; None if it cannot be one."""
    column = decoded(column)
    integer = pa.types.is_integer(column.type)
    if not integer and not is_text(column.type):
        return None
    distinct, filled = compute.count_distinct(column).as_py(), len(column) - column.null_count
    if not 2 <= distinct <= MAX_DOMAINS or filled < MIN_ROWS * distinct:
        return None
    usual = _DOMAIN_NAMES.search(name.strip().lower()) is not None
    if integer:
        limits = compute.min_max(column).as_py()
        year = limits["min"] >= YEARS[0] and limits["max"] <= YEARS[1] and distinct > 2
        return 0 if year else 1 if usual else None
    likely = LIKELY[0] <= distinct <= LIKELY[1]
    return 0 if usual and likely else 1 if usual else 2 if likely else 3
