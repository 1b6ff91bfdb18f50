"""Scores of a method on rows: large batches, no gradient, nothing changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.data.examples import Examples
from holdfast.data.splits import Part
from holdfast.methods.base import Method
from holdfast.record import Scores
from holdfast.tasks.base import Task


def outputs(method: Method, examples: Examples, rows: np.ndarray) -> Tensor:
    """(n, c) on the CPU, in the order of `rows`; the method is left in the mode it was in."""
    training = method.training
    method.eval()
    found = examples.map(method.predict, rows)
    method.train(training)
    return found


def score(
    method: Method, examples: Examples, parts: Sequence[Part], task: Task, names: Sequence[str]
) -> dict[str, Scores]:
    """The named metrics of each part, by domain."""
    found = {}
    for part in parts:
        y = examples.targets(torch.from_numpy(part.rows)).cpu()
        found[part.domain] = task.scores(outputs(method, examples, part.rows), y, names)
    return found
