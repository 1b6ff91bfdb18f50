"""Files of pretrained word vectors, and the similarity of texts by their mean vectors.

Shapes: b batch, n words, d width.
"""

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from holdfast.core.errors import BadInput

MAX_WORDS = 400_000  # limit when all words are read; such files are sorted by frequency


def read_vectors(path: str | Path, words: Iterable[str] | None, width: int | None) -> dict[str, np.ndarray]:
    """Return the float32 vectors (d,) of the words that the file contains; of duplicates, the first.

    Without `words`, the first 400,000 of the file; without `width`, the width of the file.
    """
    return dict(_read(*_stamped(path), None if words is None else frozenset(words), width))


def _stamped(path: str | Path) -> tuple[Path, int, int]:
    """Return the path, size and modification time of a file of word vectors."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no file of word vectors at {path}")
    return path, path.stat().st_size, path.stat().st_mtime_ns


@lru_cache(maxsize=2)  # a run builds its encoder twice, and a large file takes a minute
def _read(
    path: Path, size: int, modified: int, words: frozenset[str] | None, width: int | None
) -> dict[str, np.ndarray]:
    vectors: dict[str, np.ndarray] = {}
    for word, row, location in (_npz_rows if path.suffix.lower() == ".npz" else _text_rows)(path, width):
        if (words is None or word in words) and word not in vectors:
            try:
                vectors[word] = np.array(row, dtype=np.float32)
            except ValueError as error:
                raise BadInput(f"{location}: the vector of '{word}' contains text") from error
            if not np.isfinite(vectors[word]).all():
                raise BadInput(f"{location}: the vector of '{word}' contains NaN or inf")
            if words is None and len(vectors) == MAX_WORDS:
                break
    return vectors


def _text_rows(path: Path, width: int | None) -> Iterator[tuple[str, Any, str]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.split()
            if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                continue  # word2vec header: number of words and width
            if not fields:
                continue
            width = len(fields) - 1 if width is None else width
            if len(fields) <= width:
                raise BadInput(
                    f"{path}, line {number}: expected a word and {width} numbers, got {len(fields) - 1}; "
                    "set encoder.embedding to the width of the vectors"
                )
            if len(fields) == width + 1:
                yield fields[0].decode("utf-8", errors="replace"), fields[1:], f"{path}, line {number}"
            elif number == 1:  # later, it is a word with a space in it, which no text has
                raise BadInput(f"{path} has {len(fields) - 1} numbers per word: set encoder.embedding to that")


def _npz_rows(path: Path, width: int | None) -> Iterator[tuple[str, Any, str]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            names, rows = file["words"], file["vectors"]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is not an .npz with arrays 'words' (n,) and 'vectors' (n, {width or 'd'})") from error
    wide = width if width is not None else rows.shape[-1] if rows.ndim == 2 else 0
    if names.ndim != 1 or names.dtype.kind != "U" or rows.shape != (len(names), wide):
        shapes = f"{names.dtype} {names.shape} and {rows.dtype} {rows.shape}"
        raise BadInput(f"{path}: 'words' must be strings (n,) and 'vectors' numbers (n, {width or 'd'}), got {shapes}")
    if rows.dtype.kind not in "fiu":
        raise BadInput(f"{path}: 'vectors' must be numbers, got {rows.dtype}")
    yield from ((name, row, str(path)) for name, row in zip(names.tolist(), rows, strict=True))


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
    return _similarity(*_stamped(path))


@lru_cache(maxsize=1)  # a run builds its encoder twice
def _similarity(path: Path, size: int, modified: int) -> TextSimilarity:
    vectors = read_vectors(path, None, None)
    if not vectors:
        raise BadInput(f"{path} contains no word vectors")
    return TextSimilarity(vectors, f"{path.name}/{size}/{modified}")
