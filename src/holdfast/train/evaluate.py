"""Predictions, scores and class mixes of a method, in large batches and without gradients.

Shapes: n examples, c classes, k statistics per example.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.core.stopping import stop_all_if_requested, stop_if_requested
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.defaults import FEW_DOMAINS
from holdfast.methods.base import Method
from holdfast.nn.memory.read import HasMemory
from holdfast.record import Scores
from holdfast.tasks.base import Task
from holdfast.train.fit import Diverged
from holdfast.train.plan import rows_of

Function = Callable[[Inputs, Tensor], Tensor]
MEMORY_CHECK_ROWS = 8  # examples that test whether a memory is read
REMAINS = 0.1  # a class is still predicted if its share is at least this part of what it was
MAX_ROWS = 2000  # that are predicted


class Unused(BadInput):
    """A memory of the network has no effect."""


def outputs(method: Method, examples: Examples, rows: np.ndarray) -> Tensor:
    """Return (n, c) predictions on the CPU, in the order of `rows`."""
    return _map(method, examples, rows, lambda x, y: method.predict(x))


def validation_outputs(
    method: Method, examples: Examples, domains: Sequence[Part], task: Task
) -> list[tuple[Tensor, Tensor]]:
    """Return per part (n, k) the task's statistics of plain predictions, and the targets."""
    return _map_parts(method, examples, domains, lambda x, y: task.stats(method.predict(x), y))


def evaluation_outputs(
    method: Method, examples: Examples, domains: Sequence[Part], task: Task
) -> list[tuple[Tensor, Tensor]]:
    """Return per part (n, k) the task's statistics of its complete evaluation, such as responses, and the targets."""
    return _map_parts(method, examples, domains, lambda x, y: task.evaluate(method.deployed, x, y))


def score(
    method: Method, examples: Examples, domains: Sequence[Part], task: Task, names: Sequence[str]
) -> dict[str, Scores]:
    """Return the named metrics per domain."""
    pairs = zip(domains, evaluation_outputs(method, examples, domains, task), strict=True)
    return {part.domain: task.scores(*pair, names) for part, pair in pairs}


def _map_parts(
    method: Method, examples: Examples, domains: Sequence[Part], function: Function
) -> list[tuple[Tensor, Tensor]]:
    """Evaluate each domain in its own batches; many share batches unless predictions depend on the batch."""
    rows = [examples.rows_of(part) for part in domains]
    if len(domains) <= FEW_DOMAINS or method.deployed.prediction_batch is not None:
        values = [_map(method, examples, each.numpy(), function) for each in rows]
    else:
        values = _map(method, examples, torch.cat(rows).numpy(), function).split(list(map(len, rows)))
    return [(value, examples.targets(each).cpu()) for value, each in zip(values, rows, strict=True)]


def _map(method: Method, examples: Examples, rows: np.ndarray, function: Function) -> Tensor:
    stop_all_if_requested()
    training = method.training
    method.eval()
    values = examples.map(
        function, rows, lambda _: stop_if_requested(),
        prediction_batch=method.deployed.prediction_batch, targets=True, shared=True,
    )  # fmt: skip
    method.train(training)
    return values


@torch.no_grad()
def check_memory(method: Method, examples: Examples, part: Part) -> None:
    """Raise if a memory of the network is not read by a few examples, or if a read is not finite."""
    modules = method.deployed.modules()
    expected = {module.tape_name for module in modules if isinstance(module, HasMemory) and module.tape_name}
    if not expected or not len(part.rows):
        return
    training = method.training
    method.eval()
    with tape() as side:
        method.predict(examples.inputs(torch.from_numpy(part.rows[:MEMORY_CHECK_ROWS])))
    method.train(training)
    for name in sorted(expected):
        if not side[name]:
            raise Unused(f"no example reads the memory of this network ({name}): move it to another layer or remove it")
        if not all(bool(torch.isfinite(value).all()) for value in side[name]):
            raise Diverged(f"the memory read returned NaN or inf ({name}): lower --lr or set clip")


def class_mix(probabilities: np.ndarray) -> np.ndarray:
    """(c,) share of examples per predicted class."""
    return np.bincount(probabilities.argmax(axis=1), minlength=probabilities.shape[1]) / max(1, len(probabilities))


def collapsed(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether at most half of the classes that were predicted are still predicted."""
    present = before > 0
    return bool((after[present] >= REMAINS * before[present]).sum() <= present.sum() / 2) and int(present.sum()) > 1


def adaptation_mix(
    method: Method, examples: Examples, valid: tuple[Part, ...], unlabelled: tuple[Part, ...]
) -> dict[str, Any]:
    """Return the predicted class mixes of held-out source rows and of unlabelled rows, and whether it collapsed."""
    mixes = [
        class_mix(outputs(method, examples, evenly_spaced(rows_of(groups), MAX_ROWS)).numpy())
        for groups in (valid, unlabelled)
    ]
    names = ("sources", "unlabelled")
    shares = {name: mix.round(4).tolist() for name, mix in zip(names, mixes, strict=True)}
    return {"mix": shares, "collapsed": collapsed(*mixes)}


def evenly_spaced(rows: np.ndarray, limit: int) -> np.ndarray:
    """Return at most `limit` of the rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(limit, len(rows))).astype(np.int64)]
