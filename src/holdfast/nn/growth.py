"""Growing networks: more slots, words, hidden units or columns.

Shapes: g directions, r rows, k gate blocks, h hidden units, i inputs, o outputs, d feature width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_at_least
from holdfast.nn.memory.read import Growable
from holdfast.nn.necks import NoNeck

if TYPE_CHECKING:
    from holdfast.nn.model import Model


@runtime_checkable
class GrowsWords(Protocol):
    """An encoder with a growable vocabulary; `words_in` returns all words of raw examples in order of appearance."""

    def words_in(self, examples: Any) -> list[str]: ...
    def grow_words(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]: ...


@runtime_checkable
class GrowsUnits(Protocol):
    """A backbone that can be widened, or frozen and extended by a column, which reads it and never feeds back.

    `widen` and `add_column` return the new position (d,) of old features. `units_for` returns the number of units whose
    cost is nearest to a parameter budget.
    """

    def units_for(self, parameters: int, *, column: bool = False) -> int: ...
    def widen(self, units: int) -> Tensor: ...
    def add_column(self, units: int) -> Tensor: ...


@runtime_checkable
class WidenableHead(Protocol):
    """A head that can adapt to wider features."""

    def widened(self, at: Tensor, width: int, *, fresh: bool = False) -> nn.Module: ...


@torch.no_grad()
def expand_units(old: Tensor, units: int, *, blocks: int = 1, rows: int = 0) -> nn.Parameter:
    """Expand (g, r, k h) to (g, r + rows, k (h + units)); every block of the last axis gets new columns at its end.

    New entries are uniform within 1/sqrt(h + units), the initialisation of a recurrent network of that size.
    """
    before = old.unflatten(-1, (blocks, -1))  # (g, r, k, h); a bias has no r
    sizes = list(before.shape)
    sizes[-1] += units
    if rows:
        sizes[-3] += rows
    bound = sizes[-1] ** -0.5
    expanded = torch.empty(sizes, dtype=old.dtype, device=old.device).uniform_(-bound, bound)
    expanded[tuple(slice(size) for size in before.shape)] = before
    return nn.Parameter(expanded.flatten(-2), requires_grad=old.requires_grad)


@torch.no_grad()
def expand_inputs(old: nn.Linear, at: Tensor, inputs: int) -> nn.Linear:
    """Return a linear layer with more inputs: old weights move to columns `at` (i,), torch initialises the others."""
    assert len(at) == old.in_features <= inputs
    layer = nn.Linear(inputs, old.out_features, bias=old.bias is not None).to(old.weight)
    layer.weight[:, at.to(old.weight.device)] = old.weight  # (o, i)
    if old.bias is not None:
        layer.bias.copy_(old.bias)
    return layer.train(old.training).requires_grad_(old.weight.requires_grad)


def units_for_budget(parameters: int, cost: Callable[[int], int]) -> int:
    """Return the number of units (at least one) whose cost is nearest to `parameters`; `cost` must be increasing."""
    check_at_least(1, parameters=parameters)
    above = 1
    while cost(above) < parameters:
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if cost(middle) < parameters else (below, middle)
    return above if below < 1 or cost(above) - parameters <= parameters - cost(below) else below


def growable_memories(model: nn.Module) -> Iterator[Growable]:
    """Yield every module with slots; a network that contains a bank is yielded instead of the bank."""
    if isinstance(model, Growable) and model.slots:
        yield model
        return
    for child in model.children():
        yield from growable_memories(child)


def add_slots(model: Model, slots: int, *, domain: int) -> list[nn.Parameter]:
    """Add `slots` slots to each memory of the network and return the new parameters."""
    memories = list(growable_memories(model))
    if not memories:
        raise BadInput("expand=M needs a memory with slots: use encoder memory-lstm or neck memory, or remove M")
    return [parameter for memory in memories for parameter in memory.grow(slots, domain=domain)]


def add_words(model: Model, words: Sequence[str], *, vectors: str | None) -> list[nn.Parameter]:
    """Add the unknown words to the vocabulary and return the new parameters."""
    if not isinstance(model.backbone, GrowsWords):
        raise BadInput("expand=V needs a growable vocabulary: use encoder memory-lstm or memory-gru, or remove V")
    return model.backbone.grow_words(words, vectors=vectors)


def add_units(model: Model, units: int, *, worth: int, column: bool) -> list[nn.Parameter]:
    """Add hidden units (or, with `units=0`, the number nearest to `worth` parameters); return all new parameters.

    The head adapts: old features keep their weights. With `column` the head is reinitialised.
    """
    backbone = model.backbone
    if not isinstance(model.neck, NoNeck):
        raise BadInput("expand=H and expand=C need a network without a neck: remove H and C, or use neck=none")
    if not isinstance(backbone, GrowsUnits):
        raise BadInput("expand=H and expand=C need the encoder memory-lstm or memory-gru: use one, or remove H and C")
    before = set(model.parameters())
    units = units or backbone.units_for(worth, column=column)
    at = backbone.add_column(units) if column else backbone.widen(units)
    width = model.neck.width = int(backbone.width)  # pyright: ignore[reportArgumentType]
    has_parameters = any(True for _ in model.head.parameters())
    if width != len(at) or (column and has_parameters):
        if not isinstance(model.head, WidenableHead):
            raise BadInput("this head cannot adapt to wider features: use head=linear")
        model.head = model.head.widened(at, width, fresh=column)
    return [parameter for parameter in model.parameters() if parameter not in before]
