"""Reference of a model for monitoring: statistics of held-out examples of its training domains, without the examples.

`reference.safetensors` has the outputs, projected features and lengths of held-out examples, quantiles and counts of
the columns of a table, and hashes of the words of training texts. Shapes: n examples, k outputs, d axes, g groups (all
domains together, then each domain), p number columns, q category columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from holdfast.core.seeds import derive
from holdfast.core.table import Schema
from holdfast.data.dataset import Dataset
from holdfast.data.input_statistics import MISSING, UNKNOWN, InputStatistics, input_statistics, vocabulary_of
from holdfast.data.splits import Part
from holdfast.nn.model import OutputScale
from holdfast.train.assemble import Assembly
from holdfast.train.plan import rows_of
from holdfast.uncertainty.arrays import StoredArrays
from holdfast.uncertainty.calibration import Calibration, Observations, network_predictions, observe_rows
from holdfast.uncertainty.left_out import Projection

FILE = "reference.safetensors"
FORMAT = 1
ROWS = 800  # held-out examples; drift tests compare with at most this number
AXIS_ROWS = 500  # training examples that determine the axes of the features
TEXTS = 20_000  # training texts that determine the vocabulary
QUANTILES = 101  # stored per number column and group


@dataclass(frozen=True, eq=False)
class Columns:
    """Distribution of the columns of a table per group of examples."""

    number_names: tuple[str, ...]
    categories: tuple[tuple[str, int], ...]  # name and number of categories
    counts: np.ndarray  # (g,) examples
    quantiles: np.ndarray  # (g, p, QUANTILES) of the known values; 0 without any
    missing: np.ndarray  # (g, p + q) missing values
    codes: np.ndarray  # (g, total) counts of each category and of unknown ones, column after column

    @staticmethod
    def of(statistics: InputStatistics, domain: np.ndarray, domains: int) -> Columns | None:
        """Summarise columns; None without columns."""
        numbers, codes = statistics.numbers, statistics.codes
        if numbers is None:
            return None
        codes = np.zeros((len(numbers), 0), dtype=np.int32) if codes is None else codes
        groups = [np.ones(len(numbers), dtype=bool), *(domain == i for i in range(domains))]
        at = np.linspace(0, 1, QUANTILES)
        quantiles = np.zeros((len(groups), numbers.shape[1], QUANTILES))
        for g, rows in enumerate(groups):
            for i, values in enumerate(numbers[rows].T):
                known = values[np.isfinite(values)]
                if len(known):
                    quantiles[g, i] = np.quantile(known, at)
        missing = [np.r_[np.isnan(numbers[rows]).sum(axis=0), (codes[rows] == MISSING).sum(axis=0)] for rows in groups]
        counted = [category_counts(codes[rows], statistics.categories) for rows in groups]
        sizes = np.asarray([int(rows.sum()) for rows in groups])
        names = statistics.number_names, statistics.categories
        return Columns(*names, sizes, quantiles, np.stack(missing), np.stack(counted))

    def category_slice(self, column: int) -> slice:
        """Return the columns of `codes` of one category column; the last of them counts unknown categories."""
        start = sum(size + 1 for _, size in self.categories[:column])
        return slice(start, start + self.categories[column][1] + 1)


def category_counts(codes: np.ndarray, categories: Sequence[tuple[str, int]]) -> np.ndarray:
    """Return how often each category and an unknown one occur in codes (n, q), column after column."""
    counts = []
    for column, (_, size) in enumerate(categories):
        own = codes[:, column]
        counts.append(np.bincount(np.where(own == UNKNOWN, size, own)[own != MISSING], minlength=size + 1))
    return np.concatenate([*counts, np.zeros(0, dtype=np.int64)])


@dataclass(frozen=True, eq=False)
class Reference(StoredArrays):
    """Statistics of held-out examples in random order; outputs are those of the first network of an average.

    Outputs are calibrated probabilities (n, c), or predicted numbers in the units of the target (n, 1).
    """

    domains: tuple[str, ...]
    domain: np.ndarray  # (n,) index into the domains
    outputs: np.ndarray  # (n, k)
    y: np.ndarray  # (n,) class, or number; -1 or nan where unknown
    foreign: np.ndarray | None = None  # (n,) percentiles
    coordinates: np.ndarray | None = None  # (n, d) projected features
    lengths: np.ndarray | None = None  # (n,)
    unknown: np.ndarray | None = None  # (n,) share of words that are not in the vocabulary
    vocabulary: np.ndarray | None = None  # (v,) sorted hashes of the words of training texts
    projection: Projection | None = None
    columns: Columns | None = None
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise TypeError(f"{FILE} has format {self.format}, this version reads {FORMAT}")
        count = len(self.domain)
        per_example = (self.outputs, self.y, self.foreign, self.coordinates, self.lengths, self.unknown)
        if any(array is not None and len(array) != count for array in per_example) or self.outputs.ndim != 2:
            raise TypeError(f"{FILE} has arrays of different lengths")
        if count and not 0 <= self.domain.min() <= self.domain.max() < len(self.domains):
            raise TypeError(f"{FILE} has an unknown domain")

    def __len__(self) -> int:
        return len(self.domain)


def fit_reference(
    assembly: Assembly, dataset: Dataset, train: Sequence[Part], held_out: Sequence[Part], *,
    calibration: Calibration | None, columns: Sequence[str] | None, seed: int,
) -> Reference | None:  # fmt: skip
    """Compute the reference of a trained network; None for tasks without one prediction per example.

    Held-out rows are drawn without regard to their domains, so that the reference has the mix of the training data.
    The axes of the features come from training rows: held-out and new rows are then equally new to them.
    """
    predicts = assembly.task.predicts
    if assembly.method is None or not predicts or not train or not held_out:
        return None
    rng = np.random.default_rng(derive(seed, "reference"))
    rows = rng.permutation(rows_of(held_out))[:ROWS]
    if dataset.targets is None:
        y = dataset.y[rows].astype(np.int64)
    else:  # for sets of labels nothing is known
        y = dataset.targets[rows] if dataset.targets.ndim == 1 else np.full(len(rows), np.nan)
    seen = rng.permutation(rows_of(train))[:TEXTS]
    return reference_of(
        dataset, seen, rows, y, partial(observe_rows, assembly), predicts, calibration, assembly.deployed.scale,
        schema=assembly.encoder.schema, columns=columns, seed=seed,
    )  # fmt: skip


def reference_of(
    dataset: Dataset, seen: np.ndarray, rows: np.ndarray, y: np.ndarray,
    observe: Callable[[np.ndarray], Observations], predicts: str, calibration: Calibration | None,
    scale: OutputScale | None, *, schema: Schema, columns: Sequence[str] | None, seed: int,
) -> Reference:  # fmt: skip
    """Return the statistics of `rows` with targets `y` (n,), whose axes and vocabulary come from the rows `seen`.

    `observe` computes what the network returns for some rows.
    """
    first, observed = observe(seen[:AXIS_ROWS]), observe(rows)
    projection = Projection.fit(first.features, seed=seed)
    inputs = input_statistics(dataset.raw, rows, schema=schema, names=columns)
    vocabulary = None
    if inputs.words is not None:
        vocabulary = vocabulary_of(input_statistics(dataset.raw, seen, schema=schema))
    domain, features = dataset.domain[rows], observed.features
    outputs = network_predictions(observed.outputs, predicts, calibration, scale)
    return Reference(
        domains=dataset.domains, domain=domain, y=y,
        outputs=(outputs[:, :1] if predicts == "numbers" else outputs).astype(np.float32),
        foreign=None if calibration is None else calibration.foreign.percentiles(features),
        coordinates=None if projection is None else projection(features),
        lengths=inputs.lengths, unknown=inputs.unknown_words(vocabulary), vocabulary=vocabulary, projection=projection,
        columns=Columns.of(inputs, domain, len(dataset.domains)),
    )  # fmt: skip
