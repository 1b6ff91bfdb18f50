"""Similarity of texts by their mean word vectors.

Shapes: b batch, n words, d width.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.word_vectors import read_vectors, stamped


class TextSimilarity:
    """Cosine of mean word vectors; words without a vector are ignored, texts without any have similarity 0."""

    def __init__(self, vectors: dict[str, np.ndarray], name: str) -> None:
        self.name = name  # identifies the file
        self.index = {word: i for i, word in enumerate(vectors)}
        self.rows = np.stack(list(vectors.values())).astype(np.float32)  # (n, d)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # immutable, so copies of a network share it

    def ids(self, words: Sequence[str]) -> list[int]:
        """Return the ids of the words that have a vector."""
        return [self.index[word] for word in words if word in self.index]

    def cosines(self, first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> np.ndarray:
        """(b,) similarity of texts given as word ids."""
        a, b = (np.stack([self._mean(text) for text in texts]) for texts in (first, second))
        sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return np.where(sizes > 0, (a * b).sum(1) / np.where(sizes > 0, sizes, 1.0), 0.0)

    def _mean(self, text: Sequence[int]) -> np.ndarray:
        return self.rows[list(text)].mean(0) if len(text) else np.zeros(self.rows.shape[1], dtype=np.float32)


def load_similarity(path: str | Path) -> TextSimilarity:
    """Build a similarity from a file of word vectors of any width."""
    return _similarity(*stamped(path))


@lru_cache(maxsize=1)  # a run builds its encoder twice
def _similarity(path: Path, size: int, modified: int) -> TextSimilarity:
    vectors = read_vectors(path, None, None)
    if not vectors:
        raise BadInput(f"{path} contains no word vectors")
    return TextSimilarity(vectors, f"{path.name}/{size}/{modified}")
