"""More units in a layer that has learned: old entries move to their new places, new ones are drawn as at the start.

g directions, r rows, k blocks, h hidden units, i inputs, o outputs
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput


@torch.no_grad()
def enlarged(old: Tensor, units: int, *, blocks: int = 1, rows: int = 0) -> nn.Parameter:
    """(g, r, k h) to (g, r + rows, k (h + units)): every block of the last axis gets new columns at its end.

    What is new is uniform within 1/sqrt(h + units), as a recurrent network of that size is drawn.
    """
    parts = old.unflatten(-1, (blocks, -1))  # (g, r, k, h); a bias has no r
    sizes = list(parts.shape)
    sizes[-1] += units
    if rows:
        sizes[-3] += rows
    bound = sizes[-1] ** -0.5
    made = torch.empty(sizes, dtype=old.dtype, device=old.device).uniform_(-bound, bound)
    made[tuple(slice(size) for size in parts.shape)] = parts
    return nn.Parameter(made.flatten(-2), requires_grad=old.requires_grad)


@torch.no_grad()
def spread(old: nn.Linear, at: Tensor, inputs: int) -> nn.Linear:
    """A layer of more inputs whose old inputs now lie at `at` (i,); the weights of the others are drawn by torch."""
    assert len(at) == old.in_features <= inputs
    made = nn.Linear(inputs, old.out_features, bias=old.bias is not None).to(old.weight)
    made.weight[:, at.to(old.weight.device)] = old.weight  # (o, i)
    if old.bias is not None:
        made.bias.copy_(old.bias)
    return made.train(old.training).requires_grad_(old.weight.requires_grad)


def units_worth(parameters: int, cost: Callable[[int], int]) -> int:
    """How many units, at least one, cost nearest to so many parameters; the cost rises with the units."""
    if parameters < 1:
        raise BadInput(f"a network grows by at least one parameter, not {parameters}")
    above = 1
    while cost(above) < parameters:
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if cost(middle) < parameters else (below, middle)
    return above if below < 1 or cost(above) - parameters <= parameters - cost(below) else below


def at_least_one(units: int, what: str) -> None:
    """One sentence where nothing would be added."""
    if units < 1:
        raise BadInput(f"{what} needs at least one hidden unit, not {units}")
