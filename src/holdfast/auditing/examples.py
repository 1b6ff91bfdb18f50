"""Examples of any kind as the audit sees them: hashes, texts, cheap features and targets (n examples, d width)."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from holdfast.auditing.hashing import graph_features, graph_hashes, mixed, row_hashes, text_hashes
from holdfast.auditing.near import LONGEST, Thumbnails, near_images, near_texts, thumbnails
from holdfast.auditing.table_features import TableFeatures, described
from holdfast.core.inputs import Question, Sentence
from holdfast.core.table import TableRows
from holdfast.data.dataset import Dataset
from holdfast.stats.formatting import shortened

WORDS = re.compile(r"\w+")
CHUNK = 1 << 15
SIDE = 32  # pixels of the images next to table rows that are compared
FITTED = 20_000  # rows from which the features of a table are scaled
SEPARATOR = "\x1f"  # between the two texts of a pair; never occurs in texts
NARROW, WIDE = 256, 1 << 18  # columns of hashed words for distances and for the classifier

_WORDS = {"n_features": NARROW, "token_pattern": r"\w+"}
_LETTERS = {"n_features": NARROW, "analyzer": "char_wb", "ngram_range": (3, 3)}
_PHRASES = {"n_features": WIDE, "token_pattern": r"\w+", "ngram_range": (1, 2)}


class Examples:
    """Examples of a data set; images are decoded once."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.kind = dataset, dataset.raw.kind
        self.images: Thumbnails | None = thumbnails(dataset.raw) if self.kind == "image" else None

    def near(self, rows: np.ndarray, *, near: float) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs (p, 2) of positions in `rows` of similar texts or images, and their similarity (p,)."""
        if self.images is not None:
            return near_images(self.images, rows)
        if self.kind == "text":
            return near_texts(*zip(*map(_texts_of, self.dataset.raw.take(rows)), strict=True), near=near)
        return np.empty((0, 2), dtype=np.int64), np.empty(0)

    def targets(self) -> np.ndarray:
        """Return codes (n,) that are equal for equal targets: a label, tags or answers; -1 without a target."""
        dataset = self.dataset
        if dataset.targets is not None:
            return np.where(dataset.y < 0, -1, np.unique(dataset.targets, axis=0, return_inverse=True)[1].reshape(-1))
        if dataset.y.max(initial=-1) >= 0 or self.kind != "text":
            return dataset.y
        targets = [_target(example) for rows in _chunks(len(dataset)) for example in self.dataset.raw.take(rows)]
        names = {name: code for code, name in enumerate(dict.fromkeys(t for t in targets if t is not None))}
        return np.asarray([-1 if t is None else names[t] for t in targets], dtype=np.int64)

    def texts(self, rows: np.ndarray) -> list[str]:
        """Return these texts, long ones truncated."""
        return _shortened(self.dataset.raw.take(rows))

    def features(self, rows: np.ndarray) -> np.ndarray:
        """Return cheap features (n, d) for distances."""
        if self.images is not None:
            return self.images.colours[rows]
        if self.kind == "text":
            return _hashed_words(self.texts(rows))
        chunk = self.dataset.raw.take(rows)
        if isinstance(chunk, TableRows):
            features = self._table_features(chunk)
            return np.hstack([features, _hashed_words(_shortened(chunk.companion))]) if has_texts(chunk) else features
        return graph_features(chunk) if self.kind == "graph" else chunk.numpy()

    @cached_property
    def _table_features(self) -> TableFeatures:
        n = len(self.dataset)
        return TableFeatures.fit(self.dataset.raw.take(np.unique(np.linspace(0, n - 1, min(n, FITTED)).astype(int))))

    @property
    def columns(self) -> int:
        """Number of columns of a table or of vectors, else 0."""
        if self.kind not in ("vector", "table", "mixed"):
            return 0
        first = self.dataset.raw.take(np.zeros(1, dtype=np.int64))
        return len(first.schema) if isinstance(first, TableRows) else first.shape[1]

    def phrases(self, rows: np.ndarray) -> Any:
        """Return features (n, d) for a linear classifier: sparse words and bigrams of texts, else cheap features."""
        if self.kind != "text":
            return self.features(rows)
        return _hashed(map(_marked_pair, self.texts(rows)), **_PHRASES)

    def show(self, row: int, most: int = 60) -> str:
        """Return a short description of one example."""
        files = self.dataset.raw.files()
        if files is not None:
            return str(files[row])
        if self.kind in ("table", "mixed"):
            return described(self.dataset.raw.take(np.asarray([row])), most)
        if self.kind != "text":
            return ""
        return shortened(" ".join(self.texts(np.asarray([row]))[0].replace(SEPARATOR, " / ").split()), most)


def _hashed(texts: Iterable[str], **options: Any) -> Any:
    """Return sparse counts (n, d) of hashed words or letters, with rows of unit length."""
    from sklearn.feature_extraction.text import HashingVectorizer  # its import takes a second

    return HashingVectorizer(alternate_sign=False, **options).transform(texts)


def _chunks(n: int) -> Iterator[np.ndarray]:
    return (np.arange(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


def input_hashes(dataset: Dataset) -> np.ndarray:
    """Return hashes (n,) that are equal for equal inputs of a data set."""
    hashes, kind = [], dataset.raw.kind
    for rows in _chunks(len(dataset)):
        if kind == "image":  # the bytes of a file
            hashes.append(text_hashes(dataset.raw.digest(row) for row in rows[:, None]))
            continue
        chunk = dataset.raw.take(rows, size=SIDE) if kind == "mixed" else dataset.raw.take(rows)
        if kind == "text":
            hashes.append(text_hashes(map(as_text, chunk)))
        else:
            hashes.append(graph_hashes(chunk) if kind == "graph" else row_hashes(chunk.numpy()))
        if isinstance(chunk, TableRows) and chunk.companion is not None:
            images = not has_texts(chunk)
            others = (image.numpy().tobytes().hex() if images else as_text(image) for image in chunk.companion)
            hashes[-1] = mixed(hashes[-1] ^ mixed(text_hashes(others)))
    return np.concatenate(hashes)


def has_texts(rows: TableRows) -> bool:
    """Whether the rows of a table have a text each."""
    return isinstance(rows.companion, list)


def _shortened(examples: Sequence[Any]) -> list[str]:
    return [as_text(example)[:LONGEST] for example in examples]


def _hashed_words(texts: Sequence[str]) -> np.ndarray:
    """(n, 2 NARROW) hashed words and sequences of letters."""
    return np.hstack([_hashed(texts, **options).toarray() for options in (_WORDS, _LETTERS)])


def as_text(example: Any) -> str:
    """Return the input of a text example as one string."""
    return SEPARATOR.join(_texts_of(example))


def _texts_of(example: Any) -> Sequence[str]:
    if isinstance(example, str | Sentence):
        return (example if isinstance(example, str) else " ".join(example.words),)
    return (example.question, example.context) if isinstance(example, Question) else example


def _marked_pair(text: str) -> str:
    """Return the second text of a pair with words of the first marked, since first texts are often shared."""
    first, separator, second = text.partition(SEPARATOR)
    if not separator:
        return text
    known = set(WORDS.findall(first.lower()))
    return " ".join(f"{word}_both" if word in known else word for word in WORDS.findall(second.lower()))


def _target(example: Any) -> Sequence[Any] | None:
    if isinstance(example, Sentence):
        return None if example.tags is None else tuple(example.tags)
    return (example.answers, example.starts) if isinstance(example, Question) and example.answers else None
