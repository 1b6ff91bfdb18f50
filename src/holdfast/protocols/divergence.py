"""A risk that is no longer a number: found at the step where it began, with the rows of that step's batch.

b rows of a batch
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.data.batches import Batches
from holdfast.methods.base import Metrics

NAMED = 20  # rows of a batch that a sentence names


class Diverged(BadInput):
    """A risk is no longer a number: the settings, not the data, are to be mended."""

    rows: tuple[int, ...] = ()  # of the data, in the batch of the first such step
    step: int = 0

    def naming(self, ids: Sequence[str] | None) -> Diverged:
        """The same with the ids of the batch's rows, or their numbers where the data has no ids."""
        if not self.rows:
            return self
        named = [str(row + 1) if ids is None else ids[row] for row in self.rows]
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        what = "rows" if ids is None else "ids"
        told = f"{self}; the batch of that step held {what} {', '.join(named[:NAMED])}{more}"
        return diverged(told, self.step, self.rows)


def diverged(sentence: str, step: int, rows: Sequence[int] = ()) -> Diverged:
    """Made in two steps, so that it travels between processes as any exception does."""
    made = Diverged(sentence)
    made.step, made.rows = step, tuple(rows)
    return made


class Recent:
    """What the steps since the last look said; nothing waits for the device until someone looks."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Metrics, Tensor]] = []
        self.batches: Batches | None = None

    def add(self, step: int, metrics: Metrics, batches: Batches) -> None:
        self.batches = batches
        self.seen.append((step, metrics, batches.drawn))

    def look(self) -> None:
        """Raise at the first step that said something that is no number."""
        seen, self.seen = self.seen, []
        if not seen or self.batches is None:
            return
        values = [value.detach().float() for _, metrics, _ in seen for value in metrics.values()]
        if all(bool(torch.stack(some).isfinite().all()) for some in by_device(values).values()):
            return
        for step, metrics, rows in seen:
            found = self.batches.examples.origins(rows).unique()
            must_be_finite({name: float(value) for name, value in metrics.items()}, step, found.tolist())


def by_device(values: Sequence[Tensor]) -> dict[torch.device, list[Tensor]]:
    """A method may count on the host what it learns on the device; each place is asked once."""
    found: dict[torch.device, list[Tensor]] = {}
    for value in values:
        found.setdefault(value.device, []).append(value)
    return found


def must_be_finite(values: dict[str, float], step: int, rows: Sequence[int] = ()) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            said = f"training diverged: {name} is {value} at step {step}; lower --lr or set clip"
            raise diverged(said, step, rows)
