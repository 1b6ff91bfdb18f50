"""Exceptions for wrong user input, and messages that are safe to print."""

import difflib
import logging
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from holdfast.core import processes

MAX_LENGTH = 800  # characters of a message, without the mark for the omitted middle
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # change the order of characters

SHORT_LIST = 4  # known names that an error lists in full


LABORATORY = {  # names that the package holdfast-lab adds
    "command": ("bench", "reproduce"),
    "analysis": (
        "expert-agreement", "expert-parts", "attention-map", "projection-tsne", "slot-map", "slot-map-tsne",
        "slot-attention", "slot-diversity", "routing", "general-memory", "segment-mass",
    ),
    "encoder": ("dialogue-gru", "dialogue-lstm"),
    "task": ("respond",),
    "data set": ("dialogue",),
}  # fmt: skip


class NothingFinished(Exception):
    """No run was completed, so that there is nothing to compare."""


class BadInput(ValueError):
    """Wrong user input, described in one sentence; the command line prints it and exits with code 2."""


class Absent(BadInput):
    """A data set that the user must supply is missing; tables continue without the columns that need it."""


class Damaged(BadInput):
    """A file is truncated or its content changed since it was written."""


def warn(sentence: str) -> None:
    """Log one warning: printed to stderr unless the program handles the logger `holdfast`."""
    if processes.is_first():
        logging.getLogger("holdfast").warning(sentence)


@contextmanager
def quiet_fit() -> Iterator[None]:
    """Ignore expected warnings of scikit-learn inside: that a fit stopped early, and that there are many classes."""
    from sklearn.exceptions import ConvergenceWarning  # its import takes a second, and only callers that fit need it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
        yield


def one_line(sentence: str) -> str:
    """Return the sentence on one line without control characters; the middle of a long one is omitted."""
    text = escape_control(" ".join(sentence.split()))
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH // 2]} [...] {text[-MAX_LENGTH // 2 :]}"


def escape_control(text: str) -> str:
    """Escape characters that control a terminal or the order of characters; line breaks stay."""
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    control = character in _BIDI_CONTROLS or (character != "\n" and unicodedata.category(character) in ("Cc", "Cs"))
    return character.encode("unicode_escape").decode("ascii") if control else character


def unknown(kind: str, name: str, known: Iterable[str], *, command: str | None = None) -> BadInput:
    """Return an error for an unknown name that suggests the nearest known one; `command` lists all names."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hints = [f"did you mean '{near[0]}'?"] if near else []
    if not near or len(known) <= SHORT_LIST:
        hints.append(f"known: {', '.join(known)}")
    elif command:
        hints.append(f"`{command}` lists all names")
    return BadInput(f"unknown {kind} '{name}': {' '.join(hints)}")


def check_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise an error unless the name is known."""
    if name not in known:
        raise unknown(kind, name, known)


def check_at_least(minimum: float, **values: float) -> None:
    """Raise an error for the first value below the minimum."""
    for name, value in values.items():
        if value < minimum:
            raise BadInput(f"`{name}` must be at least {minimum}, got {value}")


def laboratory_error(kind: str, name: str) -> BadInput | None:
    """Return the error for a name of holdfast-lab, which is not installed; None for other names."""
    if name not in LABORATORY.get(kind, ()):
        return None
    return BadInput(f"{kind} '{name}' comes with the package holdfast-lab: install the folder lab of the source")
