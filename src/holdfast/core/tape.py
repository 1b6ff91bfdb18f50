"""Side outputs of a forward pass: modules record named tensors, callers open a tape around the pass to read them."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class ScopedValue(threading.local, Generic[T]):
    """Value set inside a `with` block, per thread; not a `ContextVar`, because torch.compile breaks the graph there."""

    def __init__(self) -> None:
        self.value: T | None = None

    @contextmanager
    def bind(self, value: T | None) -> Iterator[None]:
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


def exporting() -> bool:
    """Whether the model is being exported; torch 2.11 also reports an export while it only compiles."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


Shares = Mapping[str, list[Tensor]]  # the `share/` values of one pass, without gradient


class Tape(Mapping[str, list[Tensor]]):
    """Recorded tensors by name, in order; an unknown name has an empty list.

    Values are appended to a linked list, newest first, which is sorted into lists on the first read: torch.compile
    guards on the complete content of a list it appends to, and would recompile a layer for values of other layers.
    """

    def __init__(self, labels: Tensor | None = None) -> None:
        self.labels = labels  # of the examples, for statistics of modules that do not receive them
        self.last: tuple[str, Tensor, Any] | None = None
        self._lists: defaultdict[str, list[Tensor]] = defaultdict(list)

    def _read(self) -> defaultdict[str, list[Tensor]]:
        values, node = [], self.last
        while node is not None:
            values.append(node)
            node = node[2]
        self.last = None
        for name, value, _ in reversed(values):
            self._lists[name].append(value)
        return self._lists

    def __getitem__(self, name: str) -> list[Tensor]:
        return self._read().get(name, [])

    def __contains__(self, name: object) -> bool:
        return name in self._read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


_tape = ScopedValue[Tape]()
_collected = ScopedValue[list[Shares]]()


def record(name: str, value: Tensor) -> None:
    """Add a value to the innermost open tape, if there is one."""
    opened = _tape.value
    if opened is not None:
        opened.last = (name, value, opened.last)


def is_recording() -> bool:
    """Whether a tape is open; lets modules skip values that are expensive to compute."""
    return _tape.value is not None


def known_labels() -> Tensor | None:
    """Return the labels of the examples if the caller of the innermost tape passed them."""
    return None if _tape.value is None else _tape.value.labels


@contextmanager
def tape(labels: Tensor | None = None) -> Iterator[Tape]:
    """Record the side outputs of the forward passes inside; an inner tape hides an outer one.

    `labels` (b,) are the true labels of the examples, only for statistics.
    """
    opened = Tape(labels)
    with _tape.bind(opened):
        yield opened
    if _collected.value is not None:  # only the shares: other values would keep the graph in memory
        _collected.value.append({name: opened[name] for name in opened if name.startswith("share/")})


@contextmanager
def collect_shares() -> Iterator[list[Shares]]:
    """Collect the `share/` values of every tape that is closed inside."""
    collected: list[Shares] = []
    with _collected.bind(collected):
        yield collected


def mean_shares(passes: Sequence[Shares]) -> dict[str, Tensor]:
    """Average shares over passes, per element: `load/0/2` is element 2 of the first module that recorded `load`."""
    by_module: dict[str, list[Tensor]] = defaultdict(list)
    for shares in passes:
        for name, values in shares.items():
            for module, value in enumerate(values):
                by_module[f"{name.removeprefix('share/')}/{module}"].append(value)
    means = {}
    for name, values in by_module.items():
        mean = values[0] if len(values) == 1 else torch.stack(values).mean(dim=0)
        means |= {f"{name}/{i}": value for i, value in enumerate(mean.unbind(0))} if mean.dim() else {name: mean}
    return means


def auxiliary(side: Tape) -> Tensor | None:
    """Return the sum of the recorded losses (names that start with `loss/`), or None without any."""
    losses = [value for name, values in side.items() if name.startswith("loss/") for value in values]
    return sum(losses[1:], losses[0]) if losses else None


def auxiliary_loss(side: Tape) -> Tensor | float:
    """Return the sum of the recorded losses, or 0.0: add it to the loss in your own training loop."""
    return 0.0 if (extra := auxiliary(side)) is None else extra


def with_auxiliary(loss: Tensor, side: Tape) -> Tensor:
    """Add the recorded losses to a loss."""
    return loss if (extra := auxiliary(side)) is None else loss + extra
