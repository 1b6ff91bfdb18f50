"""What every memory is: something that can be read; some can also be written, some can grow.

b batch, h heads, m slots, k slots chosen, d width
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn


class Read(NamedTuple):
    """What a read gives: the content, and the weight that each slot got in it."""

    content: Tensor  # (b, d)
    weights: Tensor  # (b, h, m), or (b, h, k) where slots were chosen
    slots: Tensor | None = None  # (b, h, k) which slots the weights belong to; None: all of them, in order


class Memory(Protocol):
    """Reading is pure: it changes nothing and keeps nothing."""

    def read(self, query: Tensor) -> Read: ...


@runtime_checkable
class Remembering(Protocol):
    """A part with a memory: which name every read of it leaves on a tape; empty where it is not to be read."""

    @property
    def tells(self) -> str: ...


@runtime_checkable
class Writable(Protocol):
    """A memory that is written, explicitly and without gradient; a forward pass never does."""

    def write(self, key: Tensor, value: Tensor) -> None: ...


@runtime_checkable
class Growable(Protocol):
    """A memory, or a network around one, that takes more slots, each of which remembers the domain it came with."""

    @property
    def slots(self) -> int: ...

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """The new parameters, for an optimizer to adopt."""
        ...
