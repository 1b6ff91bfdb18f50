"""Predictions of models for numbers and for sets of labels, from the outputs of the network.

n examples, c labels
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.data.raw import Raw
from holdfast.models.conformal import Calibrated, predict_sets
from holdfast.models.saved import ClassPredictions, SavedModel
from holdfast.tasks.regress import in_units


class Watched(NamedTuple):
    """Outputs (n, k) of the first network, answers (n, k) of the complete model, features (n, w) and percentiles (n,).

    They are what a monitor needs of a prediction.
    """

    outputs: np.ndarray
    answers: np.ndarray
    features: np.ndarray | None
    foreign: np.ndarray | None


class NumberPredictions(NamedTuple):
    """Predicted numbers (n,), and if known the ends of their intervals, the percentiles (n,) and features (n, w).

    `first` are the numbers (n,) of the first network.
    """

    values: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    foreign: np.ndarray | None
    undecided: np.ndarray | None
    features: np.ndarray | None
    first: np.ndarray


class LabelPredictions(NamedTuple):
    """Probability of every label and whether it is predicted (n, c), and if known the percentiles (n,) and features.

    `first` are the probabilities of the first network.
    """

    probabilities: np.ndarray
    predicted: np.ndarray
    foreign: np.ndarray | None
    undecided: np.ndarray | None
    features: np.ndarray | None
    first: np.ndarray


def predict_numbers(
    saved: SavedModel, raw: Raw, *, device: torch.device | str = "cpu", sets: Calibrated | None = None,
    domains: Sequence[str] | None = None,
) -> NumberPredictions:  # fmt: skip
    """Return the predictions of a regression in the units of its target; an average also averages the intervals.

    The intervals are those of `sets`, for examples of these domains, or else those of the training domains.
    """
    if saved.predicts != "numbers" or saved.model.scale is None:
        raise BadInput(f"a model of the task {saved.task} does not predict numbers: use a model of the task regress")
    outputs, weights = saved.member_outputs(raw, device=device), [weight for weight, _ in saved.all_members]
    columns = [_with_ends(member, each.values) for (_, member), each in zip(saved.all_members, outputs, strict=True)]
    known = min(values.shape[1] for values in columns)  # 1 if a member has no interval
    mixed = np.asarray(sum(weight * values[:, :known] for weight, values in zip(weights, columns, strict=True)))
    low, high = (mixed[:, 1], mixed[:, 2]) if known > 1 else (None, None)
    (mean, scale), own = saved.model.scale, outputs[0].values.astype(np.float64)
    if sets is not None:
        numbers = mixed[:, :1] if saved.members else mean + scale * own  # quantiles of members are not averaged
        predicted = predict_sets(saved, sets, raw, numbers, domains=domains, device=device)
        low, high = predicted.low, predicted.high
    return NumberPredictions(mixed[:, 0], low, high, *outputs[0][1:], first=mean + scale * own[:, 0])


def _with_ends(saved: SavedModel, outputs: np.ndarray) -> np.ndarray:
    assert saved.model.scale is not None
    margin = None if saved.calibration is None else saved.calibration.margin
    return in_units(torch.from_numpy(outputs.astype(np.float64)), margin, saved.model.scale).numpy()


def predict_labels(saved: SavedModel, raw: Raw, *, device: torch.device | str = "cpu") -> LabelPredictions:
    """Return the probability of every label, and the labels whose threshold it reaches."""
    if saved.predicts != "labels":
        raise BadInput(f"a model of the task {saved.task} does not predict sets of labels: use the task multilabel")
    outputs = saved.member_outputs(raw, device=device)
    alone = [1 / (1 + np.exp(-each.values.astype(np.float64))) for each in outputs]
    probabilities = np.sum([weight * each for (weight, _), each in zip(saved.all_members, alone, strict=True)], axis=0)
    predicted = probabilities >= label_thresholds(saved)
    return LabelPredictions(probabilities, predicted, *outputs[0][1:], first=alone[0])


def label_thresholds(saved: SavedModel) -> np.ndarray:
    """(c,) probability from which a label is predicted, the weighted average of those of all members."""
    each = []
    for weight, member in saved.all_members:
        thresholds = None if member.calibration is None else member.calibration.thresholds
        each.append(weight * (np.full(len(saved.classes), 0.5) if thresholds is None else thresholds))
    return np.sum(each, axis=0)


def answers(
    saved: SavedModel, raw: Raw, *, device: torch.device | str = "cpu", sets: Calibrated | None = None,
    observe: Callable[[Raw, Watched], None] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return one answer per example, as a server sends it; `sets` adds prediction sets of unknown domains.

    `observe` receives the predictions, to watch them.
    """
    extra: dict[str, np.ndarray | None]
    if saved.predicts == "numbers":
        numbers = predict_numbers(saved, raw, device=device, sets=sets)
        rows = [{"prediction": value} for value in numbers.values.tolist()]
        extra = {"low": numbers.low, "high": numbers.high}
        percentiles = numbers.foreign, numbers.undecided
        watched = Watched(numbers.first[:, None], numbers.values[:, None], numbers.features, numbers.foreign)
    elif saved.predicts == "labels":
        labels = predict_labels(saved, raw, device=device)
        rows = [
            {"labels": chosen_names(saved.classes, chosen), "probabilities": dict(zip(saved.classes, p, strict=True))}
            for chosen, p in zip(labels.predicted, labels.probabilities.tolist(), strict=True)
        ]
        extra, percentiles = {}, (labels.foreign, labels.undecided)
        watched = Watched(labels.first, labels.probabilities, labels.features, labels.foreign)
    else:
        classes = saved.predict(raw, device=device)
        watched = watched_classes(classes)
        rows = [
            {"label": saved.classes[row.argmax()], "probabilities": dict(zip(saved.classes, row.tolist(), strict=True))}
            for row in classes.probabilities
        ]
        if sets is not None:
            predicted = predict_sets(saved, sets, raw, classes.probabilities, device=device).classes
            for row, chosen in zip(rows, () if predicted is None else predicted, strict=True):
                row["set"] = chosen_names(saved.classes, chosen)
        extra, percentiles = {}, (classes.foreign, classes.undecided)
    if observe is not None:
        observe(raw, watched)
    extra |= dict(zip(("foreign", "undecided"), percentiles, strict=True))
    for name, values in extra.items():
        for row, value in zip(rows, [] if values is None else values.tolist(), strict=values is not None):
            row[name] = value
    return rows


def watched_classes(classes: ClassPredictions) -> Watched:
    """Return what a monitor needs of the predictions of a classifier."""
    first = classes.probabilities if classes.first is None else classes.first
    return Watched(first, classes.probabilities, classes.features, classes.foreign)


def chosen_names(classes: tuple[str, ...], chosen: np.ndarray) -> list[str]:
    """Return the names of the predicted labels."""
    return [name for name, is_chosen in zip(classes, chosen, strict=True) if is_chosen]
