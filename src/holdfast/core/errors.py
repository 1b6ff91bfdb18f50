"""The exception that means: what the user gave is wrong, here is how to mend it; and a sentence where it was mended."""

from __future__ import annotations

import difflib
import logging
import unicodedata
from collections.abc import Iterable

from holdfast.core import processes

MAX_LENGTH = 800  # characters of a sentence, beside the mark of what was left out
_TURNED = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # they change the order of what follows


class BadInput(ValueError):
    """One clear sentence for the user; the command line prints it and exits with code 2."""


class Absent(BadInput):
    """A data set that the user has to bring is not there; a table goes on without the columns that need it."""


class Damaged(BadInput):
    """A file that was written whole is no longer what was written: cut short, or with other bits."""


def warn(sentence: str) -> None:
    """One sentence about a fault that was mended on the way: on stderr, unless the program listens to its logger."""
    if processes.is_first():
        logging.getLogger("holdfast").warning(sentence)


def one_line(sentence: str) -> str:
    """A sentence fit to be shown, whatever was quoted in it: one line, its beginning and its end never lost."""
    text = escape_control(" ".join(sentence.split()))
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH // 2]} [...] {text[-MAX_LENGTH // 2 :]}"


def escape_control(text: str) -> str:
    """Characters that steer a terminal or change the order of others by their numbers; all else, and lines, stay."""
    return "".join(_escaped(each) for each in text)


def _escaped(character: str) -> str:
    odd = character in _TURNED or (character != "\n" and unicodedata.category(character) in ("Cc", "Cs"))
    return character.encode("unicode_escape").decode("ascii") if odd else character


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """An error for a name that is not known, with the nearest one suggested."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    return BadInput(f"unknown {kind} '{name}': {hint}")
