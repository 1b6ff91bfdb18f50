"""Files of pretrained word vectors.

Shapes: n words, d width.
"""

import zipfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import BadInput

MAX_WORDS = 400_000  # limit when all words are read; such files are sorted by frequency


def read_vectors(path: str | Path, words: Iterable[str] | None, width: int | None) -> dict[str, np.ndarray]:
    """Return the float32 vectors (d,) of the words that the file contains; of duplicates, the first.

    Without `words`, the first 400,000 of the file; without `width`, the width of the file.
    """
    return dict(_read(*stamped(path), None if words is None else frozenset(words), width))


def stamped(path: str | Path) -> tuple[Path, int, int]:
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
