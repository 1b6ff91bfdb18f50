"""Side outputs of a forward pass: auxiliary losses, routing weights, memory reads.

A module calls `record`; it does nothing unless a caller has opened a `tape`.  Nothing is stored on the
module, so a tape never holds values of an earlier pass.  Entries named `loss/...` are already weighted
and every method adds them to its risk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from holdfast.core.held import Held

Tape = defaultdict[str, list[Tensor]]
_open = Held[Tape]()


def record(name: str, value: Tensor) -> None:
    """Leave a value for whoever listens."""
    listening = _open.value
    if listening is not None:
        listening[name].append(value)


def listening() -> bool:
    """Whether someone listens, for values that cost something to make."""
    return _open.value is not None


@contextmanager
def tape() -> Iterator[Tape]:
    """Listen to the forward passes inside; an inner tape hides an outer one."""
    opened: Tape = defaultdict(list)
    with _open.hold(opened):
        yield opened


def told(side: Tape) -> dict[str, Tensor]:
    """Shares that modules told, entries `share/...` of vectors, one number by one: name/pass/place."""
    return {
        f"{name.removeprefix('share/')}/{i}/{j}": value
        for name, values in side.items() if name.startswith("share/")
        for i, vector in enumerate(values)
        for j, value in enumerate(vector.unbind(0))
    }  # fmt: skip


def auxiliary(side: Tape) -> Tensor | None:
    """The sum of all losses the modules left on the tape, or None."""
    losses = [value for name, values in side.items() if name.startswith("loss/") for value in values]
    return sum(losses[1:], losses[0]) if losses else None


def auxiliary_loss(side: Tape) -> Tensor | float:
    """The same for a loop of one's own, to be added to a loss: 0 where there are none."""
    found = auxiliary(side)
    return 0.0 if found is None else found
