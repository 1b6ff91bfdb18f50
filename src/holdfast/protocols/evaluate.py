"""Scores of a method on rows: large batches, no gradient, nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.methods.base import Method
from holdfast.nn.memory.read import HasMemory
from holdfast.protocols.resume import stop_all_if_requested, stop_if_requested
from holdfast.record import Scores
from holdfast.tasks.base import Task

Function = Callable[[Inputs, Tensor], Tensor]


def outputs(method: Method, examples: Examples, rows: np.ndarray) -> Tensor:
    """(n, c) plain predictions, on the CPU in the order of `rows`; the method is left in the mode it was in."""
    return _over(method, examples, rows, lambda x, y: method.predict(x))


def validation_outputs(method: Method, examples: Examples, part: Part, task: Task) -> tuple[Tensor, Tensor]:
    """What the task keeps of plain predictions of a part's examples, batch by batch, and their targets."""
    return _both(method, examples, part, lambda x, y: task.stats(method.predict(x), y))


def score(
    method: Method, examples: Examples, parts: Sequence[Part], task: Task, names: Sequence[str]
) -> dict[str, Scores]:
    """The named metrics of each part, by domain."""
    return {part.domain: task.scores(*evaluation_outputs(method, examples, part, task), names) for part in parts}


def evaluation_outputs(method: Method, examples: Examples, part: Part, task: Task) -> tuple[Tensor, Tensor]:
    """What the task keeps of a part's examples, and their targets; it looks itself, so as to do more than predict."""
    return _both(method, examples, part, lambda x, y: task.evaluate(method.deployed, x, y))


def _both(method: Method, examples: Examples, part: Part, function: Function) -> tuple[Tensor, Tensor]:
    rows = examples.rows_of(part)
    return _over(method, examples, rows.numpy(), function), examples.targets(rows).cpu()


def _over(method: Method, examples: Examples, rows: np.ndarray, function: Function) -> Tensor:
    stop_all_if_requested()
    training = method.training
    method.eval()
    found = examples.map(
        function,
        rows,
        lambda _: stop_if_requested(),
        prediction_batch=method.deployed.prediction_batch,
        targets=True,
        shared=True,
    )
    method.train(training)
    return found


ROWS = 8  # a few are enough: every example reads


class Unused(BadInput):
    """A memory is there and plays no part."""


@torch.no_grad()
def check_memory(method: Method, examples: Examples, part: Part) -> None:
    """Let a few examples through the network and listen: every memory must tell of a read, with finite numbers."""
    expected = {part.tape_name for part in method.deployed.modules() if isinstance(part, HasMemory) and part.tape_name}
    if not expected or not len(part.rows):
        return
    training = method.training
    method.eval()
    with tape() as heard:
        method.predict(examples.inputs(torch.from_numpy(part.rows[:ROWS])))
    method.train(training)
    for name in sorted(expected):
        if not heard[name]:
            raise Unused(
                f"this network has a memory that was never read ({name}), since no example passes it: give it another "
                "place or leave it out"
            )
        if not all(bool(torch.isfinite(value).all()) for value in heard[name]):
            raise Unused(f"reads of this network's memory are no numbers ({name}): lower --lr or set clip")
