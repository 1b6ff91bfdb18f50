"""Side outputs of a forward pass: auxiliary losses, routing weights, memory reads.

A module calls `record`; it does nothing unless a caller has opened a `tape`.  Nothing is stored on the
module, so a tape never holds values of an earlier pass.  Entries named `loss/...` are already weighted
and every method adds them to its risk.  Entries named `share/...` are told by every step, whatever it goes down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from holdfast.core.held import Held

Tape = defaultdict[str, list[Tensor]]
Shares = Mapping[str, list[Tensor]]  # of one pass, without gradients: in its order, what each module told
_open = Held[Tape]()
_passes = Held[list[Shares]]()


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
    if _passes.value is not None:  # shares alone: the rest would keep a pass in memory
        _passes.value.append({name: opened[name] for name in opened if name.startswith("share/")})


@contextmanager
def passes() -> Iterator[list[Shares]]:
    """The shares of each tape that is opened and closed inside, by whomever."""
    found: list[Shares] = []
    with _passes.hold(found):
        yield found


def told(heard: Sequence[Shares]) -> dict[str, Tensor]:
    """The mean over passes of what each module told, a vector number by number: name/module or name/module/place."""
    alike: dict[str, list[Tensor]] = defaultdict(list)
    for each in heard:
        for name, values in each.items():
            for module, value in enumerate(values):
                alike[f"{name.removeprefix('share/')}/{module}"].append(value)
    found = {}
    for name, values in alike.items():
        mean = values[0] if len(values) == 1 else torch.stack(values).mean(dim=0)
        found |= {f"{name}/{i}": value for i, value in enumerate(mean.unbind(0))} if mean.dim() else {name: mean}
    return found


def auxiliary(side: Tape) -> Tensor | None:
    """The sum of all losses the modules left on the tape, or None."""
    losses = [value for name, values in side.items() if name.startswith("loss/") for value in values]
    return sum(losses[1:], losses[0]) if losses else None


def auxiliary_loss(side: Tape) -> Tensor | float:
    """The same for a loop of one's own, to be added to a loss: 0 where there are none."""
    found = auxiliary(side)
    return 0.0 if found is None else found
