"""Predictions of runs in the form that combinations average, for every task with one prediction per example.

| task predicts | averaged per example |
|---|---|
| classes | calibrated probabilities (c,) |
| sets of labels | probabilities (c,), and the thresholds per label |
| numbers | prediction and ends of its interval (3,) in the units of the target; without an interval, prediction (1,) |

Shapes: n examples, c classes or labels, m members.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit
from torch import Tensor

from holdfast.models.mixture import (
    best_weights,
    calibrated,
    mix,
    shrunk_weights,
    validation_temperature,
)
from holdfast.nn.model import OutputScale
from holdfast.record import Scores, packed
from holdfast.run.train import SCALE
from holdfast.tasks.base import Task
from holdfast.tasks.multilabel import MultiLabel, best_thresholds
from holdfast.tasks.regress import Regress, conformal_margin, in_units

SMALLEST = 1e-12  # probability
ByDomain = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a run or a combination per domain, for its validation and test rows."""

    valid: ByDomain
    test: ByDomain
    temperature: float = 1.0  # of a classifier, on its validation rows
    thresholds: np.ndarray | None = None  # (c,) of sets of labels


def predictions_of(task: Task, outputs: Mapping[str, ByDomain], y: ByDomain, scale: OutputScale | None) -> Predictions:
    """Convert the outputs of a run per split and domain; everything that is chosen depends on validation rows only.

    `y` are the targets of the validation rows, and `scale` that of the outputs of a regression.
    """
    if task.predicts == "classes":
        valid, test = (calibrated(outputs["valid"], y, outputs[split]) for split in ("valid", "test"))
        return Predictions(valid, test, validation_temperature(outputs["valid"], y))
    if task.predicts == "labels":
        valid, test = ({d: expit(v.astype(np.float64)) for d, v in outputs[s].items()} for s in ("valid", "test"))
        thresholds = best_thresholds(_joined(valid), _joined(y) > 0.5)
        return Predictions(valid, test, thresholds=thresholds)
    assert isinstance(task, Regress)
    assert scale is not None
    truth = torch.from_numpy((_joined(y) - scale.mean) / scale.scale)
    margin = conformal_margin(torch.from_numpy(_joined(outputs["valid"])).double(), truth, task.level)
    valid, test = (
        {d: in_units(torch.from_numpy(v).double(), margin, scale).numpy() for d, v in outputs[split].items()}
        for split in ("valid", "test")
    )
    return Predictions(valid, test)


def _joined(values: ByDomain) -> np.ndarray:
    return np.concatenate(list(values.values()))


def weights_of(task: Task, members: Sequence[Predictions], y: ByDomain, *, shrink: bool) -> np.ndarray:
    """Return the weights (m,) of the members that are best on the validation rows; `shrink` draws them together."""
    numbers, each = task.predicts == "numbers", [member.valid for member in members]
    return (shrunk_weights if shrink else best_weights)(each, y, numbers=numbers)


def averaged(members: Sequence[Predictions], weights: np.ndarray, *, with_valid: bool) -> Predictions:
    """Return the weighted average; validation rows of different seeds differ and have none."""
    columns = min(values.shape[1] for member in members for values in member.test.values())
    tests = [{d: values[:, :columns] for d, values in member.test.items()} for member in members]
    valid = mix([member.valid for member in members], weights) if with_valid else {}
    each = [member.thresholds for member in members if member.thresholds is not None]
    return Predictions(valid, mix(tests, weights), thresholds=np.asarray(weights) @ np.stack(each) if each else None)


def stored_outputs(task: Task, predictions: Predictions) -> dict[str, Tensor]:
    """Return tensors per split and domain in the form of runs: log-probabilities, logits, or numbers with a scale."""
    outputs = {}
    for split, values in (("test", predictions.test), ("valid", predictions.valid)):
        for domain, each in values.items():
            own = each[:, :1] if isinstance(task, Regress) else each
            outputs[f"{split}/{domain}"] = _as_outputs(task, own)
    return outputs | ({SCALE: torch.tensor([0.0, 1.0])} if isinstance(task, Regress) else {})


def scores_of(task: Task, values: ByDomain, y: ByDomain, thresholds: np.ndarray | None) -> dict[str, Scores]:
    """Return the metrics per domain, with those of intervals where predictions have one."""
    scores = {}
    for domain, each in values.items():
        scored, stats, truth = _evaluated(task, each, y[domain], thresholds)
        scores[domain] = scored.scores(stats, truth, scored.reported)
    return scores


def test_fields(task: Task, values: ByDomain, y: ByDomain, thresholds: np.ndarray | None) -> dict[str, Any]:
    """Return what a record stores per test domain: scores, correctness per example, and predicted numbers."""
    correct, summaries = {}, {}
    for domain, each in values.items():
        scored, stats, truth = _evaluated(task, each, y[domain], thresholds)
        if (right := scored.correct(stats, truth)) is not None:
            correct[domain] = packed(right.tolist())
        if summary := scored.summary(stats, truth):
            summaries[domain] = summary
    fields = {"test": scores_of(task, values, y, thresholds), "right": correct}
    return {**fields, **({"predictions": summaries} if summaries else {})}


def _evaluated(
    task: Task, values: np.ndarray, y: np.ndarray, thresholds: np.ndarray | None
) -> tuple[Task, Tensor, Tensor]:
    """Return the task, outputs that stand for these predictions, and targets."""
    task = copy.copy(task)
    if isinstance(task, Regress):  # its scale is that of the target
        task.margin = 0.0 if values.shape[1] > 1 else None
    if isinstance(task, MultiLabel):
        task.thresholds = thresholds
    truth = np.ascontiguousarray(y) if task.predicts == "classes" else y.astype(np.float64)
    return task, _as_outputs(task, values), torch.from_numpy(truth)


def _as_outputs(task: Task, values: np.ndarray) -> Tensor:
    """Return outputs that give these predictions."""
    if task.predicts == "numbers":
        return torch.from_numpy(np.ascontiguousarray(values))
    if task.predicts == "labels":
        return torch.from_numpy(logit(values.clip(SMALLEST, 1 - SMALLEST)))
    return torch.from_numpy(np.log(values.clip(SMALLEST)))
