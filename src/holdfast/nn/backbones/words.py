"""Texts to words, and the vocabulary that training texts give."""

from __future__ import annotations

import json
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput

PAD, UNKNOWN, SEPARATOR = range(3)
SPECIALS = 3

ELLIPSIS, END = "<elp>", "<eos>"

_WORD = re.compile(r"\d+(?:[.,]\d+)+|\w+(?:['’]\w+)*|[^\w\s]")
_CLOSING = re.compile(r" ([.,!?;:%)\]}…])")
_PLAIN = re.compile(r"\.\.\.|[.!?]|[a-z<>']+")


def words_of(text: str) -> list[str]:
    """Lower-case words, numbers (3.5 is one) and punctuation marks."""
    return _WORD.findall(text.lower())


def plain_words_of(text: str) -> list[str]:
    """What the released code of progressive memory banks keeps: letters, apostrophes and . ! ?, three dots as one word.

    Accents are taken off; numbers and other marks vanish.
    """
    bare = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    return [ELLIPSIS if word == "..." else word for word in _PLAIN.findall(bare)]


def text_of(words: Iterable[str]) -> str:
    """Words as a text: marks that end something stand close to what is before them."""
    return _CLOSING.sub(r"\1", " ".join(words))


def texts_of(examples: Iterable[Any]) -> Iterable[str]:
    """Every text of examples that are texts or pairs of them."""
    for example in examples:
        yield from (example,) if isinstance(example, str) else example


def vocabulary(
    examples: Sequence[Any], *, min_count: int, max_words: int, split: Callable[[str], list[str]] = words_of
) -> list[str]:
    """The words that occur often enough, most frequent first, ties in alphabetic order."""
    counts: Counter[str] = Counter()
    for text in texts_of(examples):
        counts.update(split(text))
    kept = [word for word, count in counts.items() if count >= min_count]
    return sorted(kept, key=lambda word: (-counts[word], word))[:max_words]


class WordTable(nn.Module):
    """One table for the first words and one for each later group, so that an optimizer keeps what it knows of the old.

    The later words are also a buffer of their own: the state of a grown table loads into one that has not grown.
    """

    later: Tensor

    def __init__(self, words: Sequence[str], width: int, *, spread: float) -> None:
        super().__init__()
        self.width, self.spread = width, spread
        self.groups: list[list[str]] = []
        self.index: dict[str, int] = {}
        self.tables = nn.ParameterList()
        self.register_buffer("later", torch.zeros(0, dtype=torch.uint8))
        self._add(list(words), torch.randn(SPECIALS + len(words), width) * spread)
        with torch.no_grad():
            self.tables[0][PAD] = 0
        self.register_load_state_dict_pre_hook(_make_room)

    def grow(self, words: Sequence[str]) -> list[nn.Parameter]:
        """Rows for words that are new, drawn at random; the new parameter in a list, or none where all are known."""
        new = [word for word in dict.fromkeys(words) if word not in self.index]
        if not new:
            return []
        like = self.tables[0]
        return [self._add(new, torch.randn(len(new), self.width, dtype=like.dtype, device=like.device) * self.spread)]

    def _add(self, words: list[str], rows: Tensor) -> nn.Parameter:
        start = SPECIALS + len(self.index)
        self.index.update({word: start + i for i, word in enumerate(words)})
        self.groups.append(words)
        self.tables.append(nn.Parameter(rows))
        text = json.dumps(self.groups[1:]).encode()
        self.later = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.later.device)
        return self.tables[-1]

    @torch.no_grad()
    def put(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Set the vectors of words that are known."""
        starts = self._starts()
        for word, vector in vectors.items():
            at = self.index[word]
            group = max(i for i, start in enumerate(starts) if start <= at)
            self.tables[group][at - starts[group]] = torch.from_numpy(vector).to(self.tables[group])

    def ids(self, words: Sequence[str]) -> list[int]:
        return [self.index.get(word, UNKNOWN) for word in words]

    def rows(self) -> Tensor:
        """(n, d) the vectors of all words by their number, those that are no words first."""
        return self.tables[0] if len(self.tables) == 1 else torch.cat(list(self.tables))

    def words(self) -> list[str]:
        """Every word by its number; those that are no words are empty."""
        return [""] * SPECIALS + [word for group in self.groups for word in group]

    def _starts(self) -> list[int]:
        sizes = [len(table) for table in self.tables]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def forward(self, ids: Tensor) -> Tensor:
        """(b, t, d) the vectors of these words, from whichever table has them."""
        first, *more = self.tables
        found = F.embedding(ids.clamp(max=len(first) - 1) if more else ids, first, padding_idx=PAD)
        for table, start in zip(more, self._starts()[1:], strict=True):
            at = ids - start
            inside = (at >= 0) & (at < len(table))
            found = torch.where(inside[..., None], F.embedding(at.clamp(0, len(table) - 1), table), found)
        return found


def _make_room(table: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: grow by the words that they have."""
    assert isinstance(table, WordTable)
    if f"{prefix}later" not in state:
        return
    groups = json.loads(state[f"{prefix}later"].cpu().numpy().tobytes())
    for words in groups[len(table.groups) - 1 :]:
        for parameter in table.grow(words):
            parameter.requires_grad_(table.tables[0].requires_grad)
    if table.groups[1:] != groups:
        raise RuntimeError(f"these weights are of other words than this table's {len(table.index)}")


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
