"""Simple baselines that are solved at once: linear regressions on fixed features, and constant predictions.

Shapes: n examples, d features, c classes or labels, k outputs.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse
from scipy.special import logit
from threadpoolctl import threadpool_limits
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.settings import checked_settings, log, setting
from holdfast.methods.base import Method, Metrics
from holdfast.methods.linear_fit import (
    SPARSE_STRENGTHS,
    STRENGTHS,
    Design,
    LinearFit,
    choose_ridge,
    choose_strength,
    fit_labels,
    fit_linear,
    log_frequencies,
    ridge,
)
from holdfast.nn.backbones.bag import BagBackbone
from holdfast.nn.heads import Linear
from holdfast.tasks.base import Task
from holdfast.tasks.regress import Regress


class SolvedAtOnce(Method):
    """Base of methods whose single step fits the head, a linear one by default, to all training examples.

    The examples of earlier stages are stored, so that a later stage fits the head to all domains so far.
    """

    full_batch = True
    needs_past = "examples"
    saved_attributes = ("optimizer", "earlier")

    head_type: ClassVar[type[Any]] = Linear
    head_name = "linear"

    def setup(self) -> None:
        if not isinstance(self.model.head, self.head_type):
            raise BadInput(f"this method fits another head: use head={self.head_name}")
        self.head: Any = self.model.head
        self.earlier: list[dict[str, Tensor]] = []  # one per domain of an earlier stage
        self.current: list[Design] = []  # of the stage in training

    def step(self, batch: DomainBatch) -> Metrics:
        return self.solve(batch.by_domain())

    def solve(self, batches: Iterable[DomainBatch]) -> Metrics:
        """Set the head to the optimum for these examples and those of earlier stages; return its risk."""
        self.current = self._designs(batches)
        designs = [_unpack(stored) for stored in self.earlier] + self.current
        with threadpool_limits(torch.get_num_threads()):
            solution = parallel.from_first(lambda: self.fit(designs))
        self.write(solution)
        return {name: torch.tensor(value) for name, value in solution.metrics.items()}

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        self.earlier += [_pack(design) for design in self.current or self._designs(batches)]
        self.current = []

    @abstractmethod
    def fit(self, designs: Sequence[Design]) -> Any:
        """Return the solution for the examples of each domain, with `metrics`."""

    @torch.no_grad()
    def write(self, solution: Any) -> None:
        """Write the solution to the network."""
        self.head.weight.copy_(torch.from_numpy(solution.weight))
        self.head.bias.copy_(torch.from_numpy(solution.bias))

    def columns(self, x: Any) -> Any:
        """Return the columns (b, d) of the linear map, dense or sparse."""
        return self.model.features(x).float().cpu().numpy()

    def _designs(self, batches: Iterable[DomainBatch]) -> list[Design]:
        """Return the labelled examples per domain, in the order of the domains."""
        training, groups = self.training, dict[int, list[Design]]()
        self.eval()
        with torch.no_grad():
            for batch in batches:
                for part in batch.by_domain():
                    y = part.y.cpu().numpy()
                    groups.setdefault(part.domains[0], []).append(Design(self.columns(part.x), y).labelled())
        self.train(training)
        return [Design.join(designs) for _, designs in sorted(groups.items())]


class LinearRegression(SolvedAtOnce):
    """Base of regressions on the features of a frozen encoder, with an L2 penalty chosen on domains.

    Each source domain is held out once to choose the inverse strength `C`, and whether features are divided by their
    standard deviation or by its square root; a single domain is divided into folds. For encoders of sparse counts,
    such as TF-IDF, the regression is on the counts themselves, and its weights become columns of the encoder's table.
    """

    @checked_settings
    class Settings:
        C: float | None = setting(
            None, above=0, search=log(1e-2, 1e3), help="inverse strength of the penalty; default: chosen"
        )

    def setup(self) -> None:
        super().setup()
        backbone, classes = self.model.backbone, self.head.outputs
        self.bag = backbone if isinstance(backbone, BagBackbone) and backbone.table.requires_grad else None
        if self.bag is not None and self.bag.width < classes:
            needed = f"encoder.dimension of at least {classes}, got {self.bag.width}"
            raise BadInput(
                f"a linear regression with {classes} outputs needs {needed}: set encoder.dimension={classes}"
            )

    def columns(self, x: Any) -> Any:
        if self.bag is None:
            return super().columns(x)
        assert isinstance(x, Tokens)
        return self.bag.matrix(x)

    @property
    def strengths(self) -> Sequence[float]:
        """Inverse strengths of the penalty to choose from."""
        if self.settings.C is not None:
            return (self.settings.C,)
        return STRENGTHS if self.bag is None else SPARSE_STRENGTHS

    @torch.no_grad()
    def write(self, solution: LinearFit) -> None:
        if self.bag is None:
            super().write(solution)
            return
        classes = self.head.outputs  # the first columns of the table are the outputs, the others stay as they are
        self.bag.table[:, :classes] = torch.from_numpy(solution.weight.T).to(self.bag.table)
        self.head.weight.copy_(torch.eye(classes, self.bag.width))
        self.head.bias.copy_(torch.from_numpy(solution.bias))


class Logistic(LinearRegression):
    """Logistic regression: one multinomial regression, or one binary regression per label of a set."""

    def fit(self, designs: Sequence[Design]) -> LinearFit:
        design = Design.join(designs)
        if self.task.predicts == "labels":
            return fit_labels(design, designs, self.strengths)
        return fit_linear(design, self.head.outputs, *choose_strength(designs, self.strengths))


class Ridge(LinearRegression):
    """Ridge regression of a number; quantiles are the regression plus the quantiles of its training errors."""

    def fit(self, designs: Sequence[Design]) -> LinearFit:
        design = Design.join(designs)
        solution = ridge(design, *choose_ridge(designs, self.strengths))
        if not (levels := quantile_levels(self.task)):
            return solution
        errors = design.y - (np.asarray(design.x @ solution.weight[0]) + solution.bias[0])
        bias = solution.bias[0] + np.quantile(errors, levels)
        weight = np.repeat(solution.weight, len(levels), axis=0)
        return LinearFit(weight, bias.astype(np.float32), solution.metrics)


class Constant(SolvedAtOnce):
    """Predict the same for all inputs: class or label frequencies, the mean of numbers or their quantiles."""

    reads_inputs = False

    def columns(self, x: Any) -> Any:
        return np.zeros((len(x), 0), dtype=np.float32)

    def fit(self, designs: Sequence[Design]) -> LinearFit:
        y = Design.join(designs).y
        bias = best_constant(y, self.head.outputs, self.task)
        if y.dtype.kind == "i":
            losses = -bias[y]
        else:
            losses = np.logaddexp(0, bias) - y * bias if y.ndim == 2 else (y - bias[0]) ** 2
        return LinearFit.of(np.zeros((len(bias), self.head.in_features)), bias, risk=losses.mean())


def best_constant(y: np.ndarray, classes: int, task: Task) -> np.ndarray:
    """Return the outputs (k,) that fit classes, sets of labels or numbers best, whatever the input."""
    if y.ndim == 2:
        return label_offsets(y)
    if y.dtype.kind == "i":
        return log_frequencies(y, classes)
    y, levels = y.astype(np.float64), quantile_levels(task)
    return np.quantile(y, levels) if levels else y.mean(keepdims=True)


def label_offsets(y: np.ndarray) -> np.ndarray:
    """(c,) logit of the frequency of every label of y (n, c); no example counts as a tenth of an example."""
    least = 0.1 / (len(y) + 1)
    return logit(y.astype(np.float64).mean(axis=0).clip(least, 1 - least))


def quantile_levels(task: Task) -> tuple[float, ...]:
    """Return the probabilities of the quantiles that a task predicts; empty if it predicts none."""
    return task.quantiles if isinstance(task, Regress) else ()


def _pack(design: Design) -> dict[str, Tensor]:
    """Return the examples of a domain as tensors, for checkpoints."""
    x, y = design.x, torch.from_numpy(design.y)
    if isinstance(x, np.ndarray):
        return {"x": torch.from_numpy(x), "y": y}
    arrays = {"values": x.data, "columns": x.indices, "starts": x.indptr}
    return {**{name: torch.from_numpy(array) for name, array in arrays.items()}, "y": y, "size": torch.tensor(x.shape)}


def _unpack(stored: dict[str, Tensor]) -> Design:
    arrays = {name: tensor.cpu().numpy() for name, tensor in stored.items()}
    if "x" in arrays:
        return Design(arrays["x"], arrays["y"])
    rows, columns = map(int, arrays["size"])
    x = sparse.csr_matrix((arrays["values"], arrays["columns"], arrays["starts"]), shape=(rows, columns))
    return Design(x, arrays["y"])
