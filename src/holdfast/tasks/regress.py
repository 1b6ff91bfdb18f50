"""Regression: one number per example, with prediction intervals.

Shapes: b examples, k outputs: 1, or 3 quantiles.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.inputs import Inputs
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.data.dataset import Dataset
from holdfast.data.targets import numeric_targets
from holdfast.nn.model import Model, OutputScale
from holdfast.record import Scores
from holdfast.tasks.base import ExampleTask, Task, select

STEP = 0.05  # a prediction counts as changed if it moves by about this part of the target's standard deviation
POINTS = 200  # predictions per test domain that a record stores, for plots


class Regress(ExampleTask):
    """Squared, Huber or pinball loss on the standardised target; RMSE, MAE, R2 and prediction intervals.

    Mean and standard deviation of the target are those of the training rows. With the pinball loss, the network
    predicts the median and the ends of an interval with probability `level`. The intervals are calibrated on validation
    rows by split conformal prediction (Vovk et al., 2005; Romano et al., 2019 for quantiles).
    """

    metrics = ("rmse", "mae", "r2")
    predicts = unit = "numbers"

    @checked_settings
    class Settings:
        loss: str = setting("mse", choices=("mse", "huber", "pinball"))
        delta: float = setting(1.0, above=0, help="error from which the Huber loss is linear")
        level: float = setting(0.9, above=0, below=1, help="probability of an interval")

    @keywords_of(Settings)
    def __init__(self, settings: Settings) -> None:
        self.kind, self.delta, self.level = settings.loss, float(settings.delta), float(settings.level)
        self.scale = OutputScale(0.0, 1.0)
        self.margin: float | None = None  # of the intervals, in units of the standardised target

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Probabilities of the predicted quantiles, the median first; empty if the mean is predicted."""
        tail = (1 - self.level) / 2
        return (0.5, tail, 1 - tail) if self.kind == "pinball" else ()

    def convert(self, dataset: Dataset) -> Dataset:
        return numeric_targets(dataset, task="regress")

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"quantile {q:g}" for q in self.quantiles) or ("value",)

    def bound(self, targets: np.ndarray | None, scale: OutputScale | None = None) -> Task:
        task = copy.copy(self)
        if scale is None:
            assert targets is not None, "a regression needs numbers as targets"
            known = targets[np.isfinite(targets)]
            spread = float(known.std()) if len(known) else 0.0
            # rows of one stage may all have the same target
            task.scale = OutputScale(float(known.mean()) if len(known) else 0.0, spread if spread > 0 else 1.0)
        else:
            task.scale = scale
        return task

    def encode(self, y: np.ndarray, targets: np.ndarray | None) -> Tensor:
        assert targets is not None, "a regression needs numbers as targets"
        return torch.from_numpy(((targets - self.scale.mean) / self.scale.scale).astype(np.float32))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        if self.kind == "pinball":
            q = output.new_tensor(self.quantiles)
            error = y[:, None] - output  # (b, k)
            return torch.maximum(q * error, (q - 1) * error).mean()
        if self.kind == "huber":
            return F.huber_loss(output[:, 0], y, delta=self.delta)
        return F.mse_loss(output[:, 0], y)

    def predictions(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, 1) predictions in steps of a part of the standard deviation, so that equal ones are close ones."""
        return (model(x)[:, :1] / STEP).round().long()

    def scores(self, stats: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        error = (stats[:, 0].double() - y.double()).numpy()
        total = float(((y.double() - y.double().mean()) ** 2).sum())
        values = {
            "rmse": self.scale.scale * math.sqrt(float((error**2).mean())),
            "mae": self.scale.scale * float(np.abs(error).mean()),
            "r2": 1 - float((error**2).sum()) / total if total > 0 else None,
            **self._interval_scores(stats, y),
        }
        return select(values, names)

    def _interval_scores(self, stats: Tensor, y: Tensor) -> Scores:
        """Share of targets inside the calibrated interval, and its mean width; none before calibration."""
        if self.margin is None:
            return {}
        low, high = (edge.double() for edge in interval(stats, self.margin))
        inside = (y.double() >= low) & (y.double() <= high)
        return {
            "coverage": float(inside.double().mean()),
            "interval_width": self.scale.scale * float((high - low).clamp(min=0).mean()),
        }

    @property
    def reported(self) -> tuple[str, ...]:
        return (*self.metrics, "coverage", "interval_width") if self.margin is not None else self.metrics

    def calibrated(self, stats: Tensor, y: Tensor) -> Task:
        task = copy.copy(self)
        task.margin = conformal_margin(stats, y, self.level)
        return task

    def summary(self, stats: Tensor, y: Tensor) -> dict[str, Any]:
        """Observed and predicted numbers of some examples, and the edges of their intervals."""
        rows = torch.linspace(0, len(y) - 1, min(POINTS, len(y))).long()
        columns = {"observed": y[rows], "predicted": stats[rows, 0]}
        if self.margin is not None:
            columns["low"], columns["high"] = interval(stats[rows], self.margin)
        numbers = {name: self.scale.mean + self.scale.scale * value.double() for name, value in columns.items()}
        return {name: [float(f"{v:.6g}") for v in value.tolist()] for name, value in numbers.items()}

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        """Sample from a normal distribution around the prediction, whose likelihood is the squared loss."""
        return y if self.kind == "pinball" else output[:, 0] + torch.randn_like(output[:, 0])


def interval(outputs: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """(b,) each: lower and upper end; around the prediction, or outside of the outer quantiles."""
    return outputs[:, min(1, outputs.shape[1] - 1)] - margin, outputs[:, -1] + margin


def in_units(outputs: Tensor, margin: float | None, scale: OutputScale) -> Tensor:
    """(b, 3) prediction and ends of its interval in the units of the target; (b, 1) without a margin."""
    ends = () if margin is None else interval(outputs, margin)
    return scale.mean + scale.scale * torch.stack([outputs[:, 0], *ends], dim=1)


def conformal_margin(outputs: Tensor, y: Tensor, level: float) -> float | None:
    """Return the margin with which at least `level` of exchangeable examples are covered; None with too few examples.

    It is the ceil((n + 1) level)-th smallest distance of a target to the uncalibrated interval; negative inside it.
    """
    low, high = interval(outputs, 0.0)
    distance = torch.maximum(low - y, y - high).double().sort().values
    rank = math.ceil((len(distance) + 1) * level)
    return None if rank > len(distance) else float(distance[rank - 1])
