"""How near two texts are in meaning: the cosine of the means of their word vectors. For scoring; nothing here learns.

n words, b texts, d width
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.word_vectors import read_vectors


class Likeness:
    """Fixed vectors of words; words that have none are left out, and a text without any is like nothing, 0."""

    def __init__(self, vectors: dict[str, np.ndarray], name: str) -> None:
        self.name = name  # tells one file from another
        self.index = {word: i for i, word in enumerate(vectors)}
        self.rows = np.stack(list(vectors.values())).astype(np.float32)  # (n, d)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # nothing changes it, so copies of a network share it

    def ids(self, words: Sequence[str]) -> list[int]:
        """The numbers of those words that have a vector."""
        return [self.index[word] for word in words if word in self.index]

    def cosines(self, first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> np.ndarray:
        """(b,) of texts given as the numbers of their words."""
        a, b = (np.stack([self._mean(text) for text in texts]) for texts in (first, second))
        sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return np.where(sizes > 0, (a * b).sum(1) / np.where(sizes > 0, sizes, 1.0), 0.0)

    def _mean(self, text: Sequence[int]) -> np.ndarray:
        return self.rows[list(text)].mean(0) if len(text) else np.zeros(self.rows.shape[1], dtype=np.float32)


def load_likeness(path: str | Path) -> Likeness:
    """From a file of word vectors, as `word_vectors` reads them, of any width."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"there is no file of word vectors at {path}")
    stamp = path.stat()
    return _load(path, f"{path.name}/{stamp.st_size}/{stamp.st_mtime_ns}")


@lru_cache(maxsize=1)  # a run builds its encoder twice
def _load(path: Path, name: str) -> Likeness:
    found = read_vectors(path, None, None)
    if not found:
        raise BadInput(f"{path} holds no word vectors")
    return Likeness(found, name)
