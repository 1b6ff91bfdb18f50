"""Simple baselines for targets without one class: ridge regression on fixed features, and a constant prediction.

Shapes: n examples, d features, k outputs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import logit
from threadpoolctl import threadpool_limits

from holdfast.methods.linear_fit import Design, LinearFit, choose_ridge, ridge
from holdfast.methods.logistic import LinearRegression, SolvedAtOnce
from holdfast.tasks.base import Task
from holdfast.tasks.regress import Regress


class Ridge(LinearRegression):
    """Ridge regression of a number; quantiles are the regression plus the quantiles of its training errors."""

    def fit(self, designs: Sequence[Design]) -> LinearFit:
        design = Design.join(designs)
        with threadpool_limits(torch.get_num_threads()):
            solution = ridge(design, *choose_ridge(designs, self.strengths))
        if not (levels := quantile_levels(self.task)):
            return solution
        errors = design.y - (np.asarray(design.x @ solution.weight[0]) + solution.bias[0])
        bias = solution.bias[0] + np.quantile(errors, levels)
        weight = np.repeat(solution.weight, len(levels), axis=0)
        return LinearFit(weight, bias.astype(np.float32), solution.metrics)


class Mean(SolvedAtOnce):
    """Predict the mean target of the training examples, its quantiles or the frequency of every label."""

    reads_inputs = False

    def columns(self, x: Any) -> Any:
        return np.zeros((len(x), 0), dtype=np.float32)

    def fit(self, designs: Sequence[Design]) -> LinearFit:
        y = Design.join(designs).y.astype(np.float64)
        if y.ndim == 2:
            bias = label_offsets(y)
            risk = float((np.logaddexp(0, bias) - y * bias).mean())
        else:
            levels = quantile_levels(self.task)
            bias = np.quantile(y, levels) if levels else y.mean(keepdims=True)
            risk = float(((y - bias[0]) ** 2).mean())
        weight = np.zeros((len(bias), self.head.in_features), dtype=np.float32)
        return LinearFit(weight, bias.astype(np.float32), {"risk": risk})


def label_offsets(y: np.ndarray) -> np.ndarray:
    """(c,) logit of the frequency of every label of y (n, c); no example counts as a tenth of an example."""
    least = 0.1 / (len(y) + 1)
    return logit(y.astype(np.float64).mean(axis=0).clip(least, 1 - least))


def quantile_levels(task: Task) -> tuple[float, ...]:
    """Return the probabilities of the quantiles that a task predicts; empty if it predicts none."""
    return task.quantiles if isinstance(task, Regress) else ()
