"""Interfaces of parts that can grow, and the expansion of their tensors, which keeps old entries as they are.

Shapes: g directions, r rows, k gate blocks, h hidden units, i inputs, o outputs, d feature width.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.core.errors import check_at_least
from holdfast.nn.memory.read import Growable


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
