"""Word vectors from a file: lines of a word and its numbers as GloVe has them, or an .npz of words and vectors.

n words, d width
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np

from holdfast.core.errors import BadInput

MOST = 400_000  # words where all are asked for; such files have the frequent ones first


def read_vectors(path: str | Path, words: Iterable[str] | None, width: int | None) -> dict[str, np.ndarray]:
    """The vectors (d,) of those words that the file has, as float32; words that are written twice count once.

    Without words it is the file's first 400,000; without a width, the width of the file.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"there is no file of word vectors at {path}")
    stamp = path.stat()
    return dict(_read(path, stamp.st_mtime_ns, stamp.st_size, None if words is None else frozenset(words), width))


@lru_cache(maxsize=2)  # a run builds its encoder twice, and a large file takes a minute
def _read(
    path: Path, changed: int, size: int, words: frozenset[str] | None, width: int | None
) -> dict[str, np.ndarray]:
    found = _from_npz(path, words, width) if path.suffix.lower() == ".npz" else _from_lines(path, words, width)
    for word, vector in found.items():
        if not np.isfinite(vector).all():
            raise BadInput(f"{path}: the vector of '{word}' has a number that is not finite")
    return found


def _from_lines(path: Path, words: frozenset[str] | None, width: int | None) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with path.open("rb") as lines:
        for at, line in enumerate(lines, start=1):
            parts = line.split()
            if at == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
                continue  # how many words and how wide, as word2vec begins
            if not parts:
                continue
            width = len(parts) - 1 if width is None else width
            if len(parts) <= width:
                raise BadInput(
                    f"{path}, line {at}: a word and {width} numbers are needed, not {len(parts) - 1}; "
                    "set encoder.embedding to the width of the vectors"
                )
            if len(parts) > width + 1:
                if at == 1:
                    raise BadInput(f"{path} holds {len(parts) - 1} numbers a word: set encoder.embedding to that")
                continue  # a word with a space in it, which no text has
            word = parts[0].decode("utf-8", errors="replace")
            if (words is None or word in words) and word not in found:
                try:
                    found[word] = np.array(parts[1:], dtype=np.float32)
                except ValueError as error:
                    raise BadInput(f"{path}, line {at}: the vector of '{word}' is not made of numbers") from error
                if words is None and len(found) == MOST:
                    break
    return found


def _from_npz(path: Path, words: frozenset[str] | None, width: int | None) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            names, vectors = file["words"], file["vectors"]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is no .npz of arrays 'words' (n,) and 'vectors' (n, {width or 'd'})") from error
    wide = width if width is not None else vectors.shape[-1] if vectors.ndim == 2 else 0
    if names.ndim != 1 or names.dtype.kind != "U" or vectors.shape != (len(names), wide):
        shapes = f"{names.dtype} {names.shape} and {vectors.dtype} {vectors.shape}"
        raise BadInput(f"{path}: 'words' must be strings (n,) and 'vectors' numbers (n, {width or 'd'}), not {shapes}")
    if vectors.dtype.kind not in "fiu":
        raise BadInput(f"{path}: 'vectors' must be numbers, not {vectors.dtype}")
    found: dict[str, np.ndarray] = {}
    for at, word in enumerate(names.tolist() if words is not None else names[:MOST].tolist()):
        if (words is None or word in words) and word not in found:
            found[word] = vectors[at].astype(np.float32)
    return found
