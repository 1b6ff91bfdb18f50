"""Experience replay: some examples of the earlier domains are kept and trained on again."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import MakeOptimizer, Method, Metrics
from holdfast.methods.reservoir import Reservoir
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class Rehearsal(Method):
    """A rule with a buffer of earlier examples, which takes a stage's training data when the stage ends.

    While a domain is learned, the buffer holds earlier ones only.
    """

    kept = ("optimizer", "memory")
    follows_growth = "any"
    looks_back = "examples"

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: MakeOptimizer,
        capacity: int = 200,
        batch: int | None = None,  # examples drawn a step; as many as there are new ones unless given
    ) -> None:
        super().__init__()
        if batch is not None and batch < 1:
            raise BadInput(f"batch, the examples drawn from the buffer a step, must be at least 1, not {batch}")
        self.model, self.task = model, task
        self.memory, self.batch = Reservoir(capacity), batch
        self.optimizer = optimizer(model.learning())

    def draw(self, batch: DomainBatch) -> DomainBatch:
        """Earlier examples to go with this batch."""
        return self.memory.draw(self.batch or len(batch.y), batch.y.device)

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        self.memory.fill(batches)


class Replay(Rehearsal):
    """Minimise the mean risk over the new batch and a draw from the buffer together (Rolnick et al., 2019)."""

    def step(self, batch: DomainBatch) -> Metrics:
        held = len(self.memory)
        if held:
            batch = DomainBatch.cat([batch, self.draw(batch)])
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        extra = auxiliary(side)
        self.optimizer.descend(risk if extra is None else risk + extra)
        return {"risk": risk.detach(), "buffer": torch.tensor(float(held))}
