"""Predictions of saved models of every kind: one class, one number or a set of labels per example, and sets of these.

Shapes: n and m examples, c classes or labels, k outputs, d features.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import BadInput, check_known
from holdfast.data.raw import Raw
from holdfast.folders.format import SavedModel
from holdfast.uncertainty.arrays import Predicted
from holdfast.uncertainty.conformal import METHODS, TASKS, Calibrated, Sets, measure, needed_examples
from holdfast.uncertainty.left_out import LeftOut

INTERVAL = ("prediction", "low", "high")  # columns of a regression


def predict_examples(
    saved: SavedModel, raw: Raw, *, device: torch.device | str = "cpu", calibrated: bool = True,
    sets: Calibrated | None = None, domains: Sequence[str] | None = None,
) -> Predicted:  # fmt: skip
    """Return the predictions of a model of any kind; an average also averages the intervals of numbers.

    The intervals are those of `sets`, for examples of these domains, or else those of the training domains.
    """
    predicted = saved.predict(raw, device=device, calibrated=calibrated)
    if sets is None or saved.model.scale is None:
        return predicted
    (mean, scale), numbers = saved.model.scale, predicted.values  # quantiles of members are not averaged
    if not saved.members:
        numbers = mean + scale * predicted.outputs.astype(np.float64)
    return predicted._replace(ends=predict_sets(saved, sets, raw, numbers, domains=domains, device=device).values)


def label_thresholds(saved: SavedModel) -> np.ndarray:
    """(c,) probability from which a label is predicted, the weighted average of those of all members."""
    each = []
    for weight, member in saved.all_members:
        thresholds = None if member.calibration is None else member.calibration.thresholds
        each.append(weight * (np.full(len(saved.classes), 0.5) if thresholds is None else thresholds))
    return np.sum(each, axis=0)


def answers(
    saved: SavedModel, raw: Raw, *, device: torch.device | str = "cpu", sets: Calibrated | None = None,
    observe: Callable[[Raw, Predicted], None] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return one answer per example, as a server sends it; `sets` adds prediction sets of unknown domains.

    `observe` receives the predictions, to watch them.
    """
    if not saved.predicts:
        columns = saved.predict_columns(raw, device=device)
    else:
        predicted = predict_examples(saved, raw, device=device, sets=sets)
        columns = described(saved, predicted)
        if saved.predicts != "numbers":
            columns["probabilities"] = [dict(zip(saved.classes, row, strict=True)) for row in predicted.values.tolist()]
            if sets is not None:
                chosen = predict_sets(saved, sets, raw, predicted.values, device=device)
                columns["set"] = chosen_names(saved.classes, chosen.values)
        if observe is not None:
            observe(raw, predicted)
        columns |= {"foreign": predicted.foreign, "undecided": predicted.undecided}
    lists = {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in columns.items() if v is not None}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def described(saved: SavedModel, predicted: Predicted) -> dict[str, Any]:
    """Return what is predicted per example by name: a class, the names of labels, or a number and its interval."""
    if saved.predicts == "numbers":
        ends = () if predicted.ends is None else predicted.ends.T
        return dict(zip(INTERVAL, (predicted.values[:, 0], *ends), strict=False))
    if saved.predicts == "labels":
        return {"labels": chosen_names(saved.classes, predicted.values >= label_thresholds(saved))}
    return {"label": [saved.classes[i] for i in predicted.values.argmax(axis=1)]}


def chosen_names(classes: Sequence[str], chosen: np.ndarray) -> list[list[str]]:
    """Return the names of the chosen (n, c) classes or labels per example."""
    return [[name for name, is_chosen in zip(classes, row, strict=True) if is_chosen] for row in chosen]


def check_sets(saved: SavedModel, coverage: Any, method: str) -> LeftOut:
    """Raise unless a model can be calibrated for this coverage by this method; return what it is calibrated on."""
    if isinstance(coverage, bool) or not isinstance(coverage, int | float) or not 0 < coverage < 1:
        raise BadInput(f"the coverage must be a probability between 0 and 1, such as 0.9; got {coverage}")
    check_known("method of prediction sets", method, METHODS)
    if saved.task not in TASKS:
        known = ", ".join(TASKS)
        raise BadInput(f"a model of the task {saved.task} has no prediction sets: use a model of the tasks {known}")
    if saved.left_out is None:
        raise BadInput(
            "this model folder has no outputs of left-out domains, on which prediction sets are calibrated: train it "
            "with `holdfast compare` or `holdfast fit --left-out`"
        )
    if method == "weighted" and saved.left_out.projection is None:
        raise BadInput("this model folder has no features of left-out domains: use split or mondrian")
    return saved.left_out


def calibrate(
    saved: SavedModel, coverage: float, method: str = "split", *, new: np.ndarray | None = None
) -> Calibrated:
    """Calibrate the prediction sets of a model; `weighted` needs features (m, d) of new examples."""
    left_out = check_sets(saved, coverage, method)
    if method == "weighted" and (new is None or not len(new)):
        raise BadInput("weighted prediction sets need all new examples at once: use split or mondrian")
    calibrated = Calibrated.fit(left_out, coverage, method, ordered=saved.task == "ordinal", new=new)
    if (needed := needed_examples(coverage)) > calibrated.largest_group:
        have = f"the model folder has {calibrated.largest_group:,}"
        where = " in one domain" if method == "mondrian" else ""
        raise BadInput(
            f"a coverage of {coverage:g} needs at least {needed:,} examples of left-out domains{where}, {have}: lower "
            "the coverage, or train on more data"
        )
    return calibrated


def coordinates(saved: SavedModel, raw: Raw, *, device: torch.device | str = "cpu") -> np.ndarray:
    """Return features (n, d) of new examples on the axes of the left-out examples of a model."""
    projection = None if saved.left_out is None else saved.left_out.projection
    assert projection is not None
    if not len(raw):
        return np.zeros((0, projection.axes.shape[1]))
    return projection(saved.observe(raw, device=device).features)


def predict_sets(
    saved: SavedModel, calibrated: Calibrated, raw: Raw, outputs: np.ndarray, *, domains: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Sets:  # fmt: skip
    """Return sets or intervals for examples and their outputs: probabilities, or numbers in units of the target."""
    features = coordinates(saved, raw, device=device) if calibrated.method == "weighted" else None
    return calibrated.predict(outputs, domains=domains, features=features)


def coverage_table(saved: SavedModel, coverage: float, method: str = "split") -> list[dict[str, Any]]:
    """Return the measured coverage per left-out domain of a model as dicts; empty if it was not measured."""
    if saved.left_out is None or saved.task not in TASKS:
        return []
    if method == "weighted" and saved.left_out.coordinates is None:
        return []
    return [asdict(each) for each in measure(saved.left_out, coverage, method, ordered=saved.task == "ordinal")]
