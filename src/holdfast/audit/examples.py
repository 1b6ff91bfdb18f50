"""Examples of any kind as an audit looks at them: a number for each, texts, cheap features, what is to be learned.

n examples, d width
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer

from holdfast.audit.hashing import graph_features, graph_hashes, row_hashes, text_hashes
from holdfast.audit.near import LONGEST, Looks, look, near_images, near_texts
from holdfast.core.inputs import Question, Sentence
from holdfast.data.dataset import Dataset

WORDS = re.compile(r"\w+")
CHUNK = 1 << 15
BETWEEN = "\x1f"  # between the two texts of a pair: no text has it
NARROW, WIDE = 256, 1 << 18  # columns of hashed words, for distances and for a classifier

_WORDS: Any = HashingVectorizer(n_features=NARROW, alternate_sign=False, token_pattern=r"\w+")
_LETTERS: Any = HashingVectorizer(n_features=NARROW, alternate_sign=False, analyzer="char_wb", ngram_range=(3, 3))
_PHRASES: Any = HashingVectorizer(n_features=WIDE, alternate_sign=False, token_pattern=r"\w+", ngram_range=(1, 2))


class Examples:
    """The examples of a data set; images are decoded once."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.kind = dataset, dataset.raw.kind
        self.looks: Looks | None = look(dataset.raw) if self.kind == "image" else None

    def __len__(self) -> int:
        return len(self.dataset)

    def hashes(self) -> np.ndarray:
        """(n,) equal where two inputs are the same; targets do not count."""
        parts = []
        for rows in self._chunks():
            if self.kind == "image":  # of a file its bytes
                parts.append(text_hashes(self.dataset.raw.digest(row) for row in rows[:, None]))
                continue
            some = self.dataset.raw.take(rows)
            match self.kind:
                case "text":
                    parts.append(text_hashes(map(as_text, some)))
                case "graph":
                    parts.append(graph_hashes(some))
                case _:
                    parts.append(row_hashes(some.numpy()))
        return np.concatenate(parts)

    def near(self, rows: np.ndarray, *, near: float) -> tuple[np.ndarray, np.ndarray]:
        """(p, 2) pairs of places in `rows` that are nearly the same, and how alike (p,); of texts and images alone."""
        if self.looks is not None:
            return near_images(self.looks, rows)
        if self.kind == "text":
            return near_texts(*zip(*map(_parts, self.dataset.raw.take(rows)), strict=True), near=near)
        return np.empty((0, 2), dtype=np.int64), np.empty(0)

    def targets(self) -> np.ndarray:
        """(n,) equal where the same is to be learned: a label, the tags of a sentence, an answer; -1 where nothing."""
        if self.dataset.y.max(initial=-1) >= 0 or self.kind != "text":
            return self.dataset.y
        said = [_target(example) for rows in self._chunks() for example in self.dataset.raw.take(rows)]
        names = {name: code for code, name in enumerate(dict.fromkeys(s for s in said if s is not None))}
        return np.asarray([-1 if s is None else names[s] for s in said], dtype=np.int64)

    def texts(self, rows: np.ndarray) -> list[str]:
        """These texts, of long ones the beginning: enough for features."""
        return [as_text(example)[:LONGEST] for example in self.dataset.raw.take(rows)]

    def words(self, rows: np.ndarray) -> list[str]:
        """All words of these texts, in small letters."""
        return [word for text in self.texts(rows) for word in WORDS.findall(text.lower())]

    def features(self, rows: np.ndarray) -> np.ndarray:
        """(n, d) cheap features for distances."""
        if self.looks is not None:
            return self.looks.colours[rows]
        if self.kind == "text":
            texts = self.texts(rows)
            return np.hstack([v.transform(texts).toarray() for v in (_WORDS, _LETTERS)])
        some = self.dataset.raw.take(rows)
        return graph_features(some) if self.kind == "graph" else some.numpy()

    def phrases(self, rows: np.ndarray) -> Any:
        """(n, d) features for a linear classifier: of texts words and pairs of words, sparse; else the cheap ones."""
        return _PHRASES.transform(map(_compared, self.texts(rows))) if self.kind == "text" else self.features(rows)

    def show(self, row: int, most: int = 60) -> str:
        """A few words about one example."""
        files = self.dataset.raw.files()
        if files is not None:
            return str(files[row])
        if self.kind != "text":
            return ""
        text = " ".join(self.texts(np.asarray([row]))[0].replace(BETWEEN, " / ").split())
        return text if len(text) <= most else text[: most - 1] + "…"

    def _chunks(self) -> Iterator[np.ndarray]:
        return (np.arange(start, min(start + CHUNK, len(self))) for start in range(0, len(self), CHUNK))


def as_text(example: Any) -> str:
    """The input of an example of text as one text."""
    return BETWEEN.join(_parts(example))


def _parts(example: Any) -> Sequence[str]:
    """The texts that make the input."""
    match example:
        case str():
            return (example,)
        case Sentence():
            return (" ".join(example.words),)
        case Question():
            return example.question, example.context
        case _:
            return example


def _compared(text: str) -> str:
    """Of a pair the second text, its words marked where the first has them too: first texts are often shared."""
    first, between, second = text.partition(BETWEEN)
    if not between:
        return text
    known = set(WORDS.findall(first.lower()))
    return " ".join(f"{word}_both" if word in known else word for word in WORDS.findall(second.lower()))


def _target(example: Any) -> Sequence[Any] | None:
    match example:
        case Sentence() if example.tags is not None:
            return tuple(example.tags)
        case Question() if example.answers:
            return (example.answers, example.starts)
        case _:
            return None
