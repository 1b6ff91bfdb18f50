"""Engagement: the share of validation predictions that change when a mechanism of the network is replaced by its null.

Shapes: b examples per batch, k predictions per example.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.ragged import NONE
from holdfast.core.stopping import stop_all_if_requested, stop_if_requested
from holdfast.core.tape import Tape, tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.nn.engagement import Mechanism, mechanisms
from holdfast.nn.model import Model
from holdfast.spec import Spec
from holdfast.tasks.base import Structured, Task
from holdfast.train.assemble import Assembly
from holdfast.train.plan import Episode
from holdfast.train.workspace import Workspace

PREFIX = "stat/"  # of tape entries that are statistics of a mechanism: `stat/MECHANISM/NAME`
DIGITS = 6


def validation_parts(episode: Episode) -> tuple[Part, ...]:
    """Return the validation rows of the last stage in trained domains; in all domains if none of them was trained."""
    trained = {part.domain for stage in episode.stages for part in stage.train}
    valid = episode.stages[-1].valid
    return tuple(part for part in valid if part.domain in trained) or valid


@torch.no_grad()
def measure_engagement(model: Model, examples: Examples, domains: Sequence[Part], task: Task) -> dict[str, Any]:
    """Return per mechanism the share of predictions that its null changes, as a record stores it; empty without one.

    One pass with the unchanged network, which also averages its statistics, and one pass per mechanism. All processes
    of a run must call it; each one computes some of the batches.
    """
    named = mechanisms(model)
    rows = [examples.rows_of(part) for part in domains]
    if not named or not sum(map(len, rows)):
        return {}
    training = model.training
    model.eval()
    try:
        passes = _Passes(model, examples, torch.cat(rows).numpy(), task)
        with_content = passes.run()
        changed = {name: _changes(with_content, passes.run(modules)) for name, modules in named.items()}
    finally:
        model.train(training)
    total = sum(int((batch != NONE).sum()) for batch in with_content)
    counts = parallel.all_gather((total, changed, passes.sums))
    predictions = sum(count for count, _, _ in counts)
    statistics = _means([sums for _, _, sums in counts])
    return {
        name: {
            "share": round(sum(of[name] for _, of, _ in counts) / max(1, predictions), DIGITS),
            "predictions": predictions,
            "null": modules[0].null_name,
            "statistics": _statistics_of(name, statistics, named),
        }
        for name, modules in named.items()
    }


def engagement_of(assembly: Assembly, episode: Episode, spec: Spec, workspace: Workspace) -> dict[str, Any]:
    """Measure the mechanisms of a trained run; those inside a frozen encoder need the raw inputs again."""
    model, examples = assembly.deployed, assembly.examples
    if model is not (complete := assembly.deploy()) and mechanisms(assembly.encoder):
        model = complete.to(workspace.device)
        if isinstance(task := assembly.task, Structured):
            examples, _ = workspace.structured_examples(spec, task, assembly.encoder)
        else:
            examples = workspace.examples(workspace.store(assembly.encoder), task)
    return measure_engagement(model, examples, validation_parts(episode), assembly.task)


class _Passes:
    """Passes of one network over the same batches."""

    def __init__(self, model: Model, examples: Examples, rows: np.ndarray, task: Task) -> None:
        self.model, self.examples, self.rows, self.task = model, examples, rows, task
        self.sums: dict[str, tuple[float, int]] = {}  # statistic -> weighted sum of its means per batch, and the weight

    def run(self, replaced: Sequence[Mechanism] = ()) -> list[Tensor]:
        """Return the predictions (b, k) of each batch; without replaced mechanisms, also collect statistics."""
        stop_all_if_requested()
        predictions = []
        with ExitStack() as nulls:
            for module in replaced:
                nulls.enter_context(module.null())
            batches = self.examples.iter_batches(self.rows, prediction_batch=self.model.prediction_batch, shared=True)
            for _, x, y in batches:
                stop_if_requested()
                if replaced:
                    predictions.append(self.task.predictions(self.model, x, y).cpu())
                    continue
                with tape(labels=y) as side:
                    predictions.append(self.task.predictions(self.model, x, y).cpu())
                self._collect(side, len(y))
        return predictions

    def _collect(self, side: Tape, weight: int) -> None:
        for name in (name for name in side if name.startswith(PREFIX)):
            value = sum(float(value.float().mean()) for value in side[name]) / len(side[name])
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + weight * value, count + weight)


def _changes(before: Sequence[Tensor], after: Sequence[Tensor]) -> int:
    """Return the number of predictions that differ."""
    pairs = zip(before, after, strict=True)
    return sum(int(((a != b) & (a != NONE)).sum()) for a, b in pairs)


def _means(processes: Sequence[Mapping[str, tuple[float, int]]]) -> dict[str, float | None]:
    """Return the mean of each statistic over all processes; None if it is not finite."""
    sums: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for process in processes:
        for name, pair in process.items():
            sums[name].append(pair)
    means = {name: sum(s for s, _ in pairs) / sum(n for _, n in pairs) for name, pairs in sorted(sums.items())}
    return {name: round(mean, DIGITS) if math.isfinite(mean) else None for name, mean in means.items()}


def _statistics_of(
    mechanism: str, statistics: Mapping[str, float | None], named: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the statistics of one mechanism; a name that belongs to no mechanism is stored with each of them."""
    of: dict[str, float | None] = {}
    for name, value in statistics.items():
        owner, _, rest = name.removeprefix(PREFIX).partition("/")
        if owner == mechanism and rest:
            of[rest] = value
        elif owner not in named or not rest:
            of[name.removeprefix(PREFIX)] = value
    return of
