"""What can grow in a network: slots, words, hidden units, columns; and how the rest follows.

d width
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.memory.read import Growable
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck


@runtime_checkable
class GrowsWords(Protocol):
    """An encoder with a vocabulary of its own."""

    def words_in(self, examples: Any) -> list[str]:
        """All words that it sees in raw examples, known or not, in the order in which they come."""
        ...

    def grow_words(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]: ...


@runtime_checkable
class GrowsUnits(Protocol):
    """A backbone whose state can be widened."""

    def units_for(self, parameters: int) -> int:
        """How many units cost nearest to so many parameters."""
        ...

    def widen(self, units: int) -> Tensor:
        """Where each feature of before lies now, (d,); the features may have become more."""
        ...


@runtime_checkable
class GrowsColumns(Protocol):
    """A backbone that can rest and be joined by a column, which reads it and never feeds back."""

    def units_for(self, parameters: int, *, column: bool) -> int: ...

    def add_column(self, units: int) -> Tensor: ...


@runtime_checkable
class Widening(Protocol):
    """A head that takes wider features."""

    def widened(self, at: Tensor, width: int, *, fresh: bool = False) -> nn.Module: ...


def holders(model: nn.Module) -> Iterator[Growable]:
    """Every part that holds slots, a network around a bank in place of the bank."""
    if isinstance(model, Growable) and model.slots:
        yield model
        return
    for part in model.children():
        yield from holders(part)


def add_slots(model: Model, slots: int, *, domain: int) -> list[nn.Parameter]:
    """As many slots in each memory of the network; the new parameters."""
    found = list(holders(model))
    if not found:
        raise BadInput(
            "this network has no memory whose slots could grow: name an encoder such as memory-lstm or a neck such as "
            "memory, or expand without M"
        )
    return [parameter for each in found for parameter in each.grow(slots, domain=domain)]


def add_words(model: Model, words: Sequence[str], *, vectors: str | None) -> list[nn.Parameter]:
    """The words that are new; the new parameters."""
    if not isinstance(model.backbone, GrowsWords):
        raise BadInput(
            "this encoder has no vocabulary that could grow: use memory-lstm or memory-gru, or expand without V"
        )
    return model.backbone.grow_words(words, vectors=vectors)


def add_units(model: Model, units: int, *, worth: int, column: bool) -> list[nn.Parameter]:
    """Hidden units, or with 0 as many as `worth` parameters buy; the parameters that took the place of others.

    The head follows: features of before keep their weights. On a column it is made anew.
    """
    backbone = model.backbone
    if not isinstance(model.neck, NoNeck):
        raise BadInput("hidden units can be added to a network without a neck only: leave out H or C, or the neck")
    before = set(model.parameters())
    if column and isinstance(backbone, GrowsColumns):
        at = backbone.add_column(units or backbone.units_for(worth, column=True))
    elif not column and isinstance(backbone, GrowsUnits):
        at = backbone.widen(units or backbone.units_for(worth))
    else:
        raise BadInput(
            "this encoder cannot take hidden units or columns: use memory-lstm or memory-gru, or expand without H and C"
        )
    assert isinstance(backbone, Backbone)
    width = backbone.width
    model.neck.width = width
    learns = any(True for _ in model.head.parameters())
    if width != len(at) or (column and learns):
        if not isinstance(model.head, Widening):
            raise BadInput("this head cannot follow features that become wider: use the head linear")
        model.head = model.head.widened(at, width, fresh=column)
    return [parameter for parameter in model.parameters() if parameter not in before]
