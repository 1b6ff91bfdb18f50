"""Texts to words, and the vocabulary that training texts give."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
