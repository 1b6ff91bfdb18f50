"""Side outputs of a forward pass: auxiliary losses, routing weights, memory reads.

A module calls `record`; it does nothing unless a caller has opened a `tape`.  Nothing is stored on the
module, so a tape never holds values of an earlier pass.  Entries named `loss/...` are already weighted
and every method adds them to its risk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Tape = defaultdict[str, list[Tensor]]
_open: ContextVar[Tape | None] = ContextVar("tape", default=None)


def record(name: str, value: Tensor) -> None:
    """Leave a value for whoever listens."""
    listening = _open.get()
    if listening is not None:
        listening[name].append(value)


def listening() -> bool:
    """Whether someone listens, for values that cost something to make."""
    return _open.get() is not None


@contextmanager
def tape() -> Iterator[Tape]:
    """Listen to the forward passes inside; an inner tape hides an outer one."""
    opened: Tape = defaultdict(list)
    token = _open.set(opened)
    try:
        yield opened
    finally:
        _open.reset(token)


def auxiliary(side: Tape) -> Tensor | None:
    """The sum of all losses the modules left on the tape, or None."""
    losses = [value for name, values in side.items() if name.startswith("loss/") for value in values]
    return sum(losses[1:], losses[0]) if losses else None
