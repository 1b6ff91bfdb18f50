"""The one exception that means: what the user gave is wrong, and here is how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """One clear sentence for the user; the command line prints it and exits with code 2."""


class Absent(BadInput):
    """A data set that the user has to bring is not there; a table goes on without the columns that need it."""


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """An error for a name that is not known, with the nearest one suggested."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    return BadInput(f"unknown {kind} '{name}': {hint}")
