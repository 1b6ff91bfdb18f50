"""A value that the calls inside a `with` can ask for, on this thread alone."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class ScopedValue(threading.local, Generic[T]):
    """None, or what the innermost `hold` of this thread gave.

    It is a plain object and no context variable, because torch.compile looks through the one and breaks at the other.
    """

    def __init__(self) -> None:
        self.value: T | None = None

    @contextmanager
    def bind(self, value: T) -> Iterator[None]:
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


def exporting() -> bool:
    """Torch 2.11, unlike 2.13, tells a call that is only compiled the same, though that is meant for export alone."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


Shares = Mapping[str, list[Tensor]]  # of one pass, without gradients: in its order, what each module told


class Tape(Mapping[str, list[Tensor]]):
    """By name what was told, in order; nothing under a name that nobody told.

    What is told goes to a chain, the last one first, and only whoever reads makes lists of it: a compiler looks at all
    of a list that it adds to, and would compile layers anew for whatever others told before them.
    """

    def __init__(self) -> None:
        self.last: tuple[str, Tensor, Any] | None = None
        self._heard: defaultdict[str, list[Tensor]] = defaultdict(list)

    def _lists(self) -> defaultdict[str, list[Tensor]]:
        mean_shares, at = [], self.last
        while at is not None:
            mean_shares.append(at)
            at = at[2]
        self.last = None
        for name, value, _ in reversed(mean_shares):
            self._heard[name].append(value)
        return self._heard

    def __getitem__(self, name: str) -> list[Tensor]:
        return self._lists()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._lists()

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists())

    def __len__(self) -> int:
        return len(self._lists())

    def get(self, name: str, default: Any = None) -> Any:
        return self._lists().get(name, default)


_open = ScopedValue[Tape]()
_passes = ScopedValue[list[Shares]]()


def record(name: str, value: Tensor) -> None:
    """Leave a value for whoever listens."""
    opened = _open.value
    if opened is not None:
        opened.last = (name, value, opened.last)


def is_recording() -> bool:
    """Whether someone listens, for values that cost something to make."""
    return _open.value is not None


@contextmanager
def tape() -> Iterator[Tape]:
    """Listen to the forward passes inside; an inner tape hides an outer one."""
    opened = Tape()
    with _open.bind(opened):
        yield opened
    if _passes.value is not None:  # shares alone: the rest would keep a pass in memory
        _passes.value.append({name: opened[name] for name in opened if name.startswith("share/")})


@contextmanager
def collect_shares() -> Iterator[list[Shares]]:
    """The shares of each tape that is opened and closed inside, by whomever."""
    found: list[Shares] = []
    with _passes.bind(found):
        yield found


def mean_shares(heard: Sequence[Shares]) -> dict[str, Tensor]:
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
