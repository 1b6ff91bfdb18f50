"""Scores of a method on rows: large batches, no gradient, nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from holdfast.core.inputs import Inputs
from holdfast.data.examples import Examples
from holdfast.data.splits import Part
from holdfast.methods.base import Method
from holdfast.record import Scores
from holdfast.tasks.base import Task


def _kept(method: Method, examples: Examples, rows: np.ndarray, function: Callable[[Inputs], Tensor]) -> Tensor:
    """A function over rows, on the CPU in the order of `rows`; the method is left in the mode it was in."""
    training = method.training
    method.eval()
    found = examples.map(function, rows, together=method.deployed.together)
    method.train(training)
    return found


def outputs(method: Method, examples: Examples, rows: np.ndarray) -> Tensor:
    """(n, c) plain predictions."""
    return _kept(method, examples, rows, method.predict)


def score(
    method: Method, examples: Examples, parts: Sequence[Part], task: Task, names: Sequence[str]
) -> dict[str, Scores]:
    """The named metrics of each part, by domain."""
    return {part.domain: task.scores(*look(method, examples, part, task), names) for part in parts}


def look(method: Method, examples: Examples, part: Part, task: Task) -> tuple[Tensor, Tensor]:
    """What the task keeps of a part's examples, and their targets; it looks itself, so as to do more than predict."""
    y = examples.targets(torch.from_numpy(part.rows)).cpu()
    return _kept(method, examples, part.rows, partial(task.look, method.deployed)), y
