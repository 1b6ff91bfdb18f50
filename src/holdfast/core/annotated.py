"""Raw examples that hold their targets: a sentence with a tag a word, a question with its answers in a text."""

from __future__ import annotations

from typing import NamedTuple


class Sentence(NamedTuple):
    """Words, and for each the number of its tag; no tags where they are to be found."""

    words: list[str]
    tags: list[int] | None = None


class Question(NamedTuple):
    """A question about a text; each answer is a stretch of the text that begins at a character."""

    context: str
    question: str
    answers: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
