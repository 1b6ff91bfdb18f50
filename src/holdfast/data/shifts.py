"""Split a set of graphs into domains by a distribution shift: by size, mean degree or molecular scaffold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.core.errors import BadInput, check_known
from holdfast.core.inputs import Graphs
from holdfast.core.settings import retired_settings
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.readers.molecules import by_scaffold

ENVIRONMENTS = 2  # domains of the training graphs
_TRAIN, _VALID, _TEST = range(len(SPLITS))


@dataclass(frozen=True, slots=True)
class Shift:
    """A graph property and the percentile ranges of the training, validation and test graphs."""

    measure: str  # size or degree
    names: tuple[str, str, str]  # names of the training, validation and test domains
    train: tuple[float, float]  # above the first percentile, up to the second
    valid: tuple[float, float] | None
    test: tuple[float, float]
    min_edges: int = 0  # graphs with fewer edges, counted in both directions, are dropped

    retired = retired_settings(environments=2, group="quantile")


# size: Bevilacqua et al. (2021); degree: graphs with at most two edges are dropped, as in the code of CIGA
SHIFTS = {
    "size": Shift("size", ("small", "middle", "large"), (0, 50), None, (90, 100)),
    "degree": Shift("degree", ("low", "middle", "high"), (0, 50), (50, 80), (80, 100), min_edges=3),
    "degree-reversed": Shift("degree", ("high", "middle", "low"), (50, 100), (20, 50), (0, 20), min_edges=3),
}
SCAFFOLD_NAMES = ("common", "rarer", "rare")
NAMES = (*SHIFTS, "scaffold")


def apply_shift(dataset: Dataset, shift: str) -> Dataset:
    """Return the training, validation and test graphs of a shift as domains with splits; other graphs are dropped.

    The training graphs are divided into two domains of equal size at the median of the shifted property (for scaffolds,
    their frequency). Existing domains and labels are ignored.
    """
    check_known("shift", shift, NAMES)
    if dataset.raw.kind != "graph":
        raise BadInput(f"the shift '{shift}' applies to graphs, but {dataset.name} holds {dataset.raw.kind}s")
    train, valid, test = by_scaffold(dataset) if shift == "scaffold" else _by_property(dataset, SHIFTS[shift])
    first, second, third = SCAFFOLD_NAMES if shift == "scaffold" else SHIFTS[shift].names
    if len(train) < ENVIRONMENTS:
        raise BadInput(f"{dataset.name} has {len(train)} training graphs, too few for {ENVIRONMENTS} environments")
    groups = [(f"{first}-{i + 1}", rows, _TRAIN) for i, rows in enumerate(np.array_split(train, ENVIRONMENTS))]
    groups += [] if valid is None else [(second, valid, _VALID)]
    return _as_domains(dataset, [*groups, (third, test, _TEST)])


def _by_property(dataset: Dataset, shift: Shift) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return training rows (ordered by the property), validation and test rows by percentiles over all domains."""
    graphs = dataset.raw.take(np.arange(len(dataset)))
    eligible = np.flatnonzero([graph.edges.shape[1] >= shift.min_edges for graph in graphs])
    values = measure(shift.measure, [graphs[i] for i in eligible])
    chosen = _between(values, shift.train)
    train = eligible[chosen][np.argsort(values[chosen], kind="stable")]
    valid = None if shift.valid is None else eligible[_between(values, shift.valid)]
    return train, valid, eligible[_between(values, shift.test)]


def measure(name: str, graphs: Sequence[Graphs]) -> np.ndarray:
    """Return (n,) the number of nodes, or the mean degree: edges counted in both directions, divided by nodes."""
    sizes = np.asarray([len(graph.nodes) for graph in graphs], dtype=np.float64)
    if name == "size":
        return sizes
    return np.asarray([graph.edges.shape[1] for graph in graphs]) / np.maximum(sizes, 1)


def _between(values: np.ndarray, percentiles: tuple[float, float]) -> np.ndarray:
    """Return a mask (n,) of values above the first percentile (inclusive for 0) and up to the second."""
    if not len(values):
        return np.zeros(0, dtype=bool)
    low, high = np.percentile(values, percentiles)
    return (values <= high) & ((values > low) | (percentiles[0] == 0))


def _as_domains(dataset: Dataset, groups: Sequence[tuple[str, np.ndarray, int]]) -> Dataset:
    domain, split = np.full(len(dataset), -1, dtype=np.int64), np.full(len(dataset), -1, dtype=np.int64)
    for index, (name, rows, kind) in enumerate(groups):
        if not len(rows):
            raise BadInput(f"{dataset.name} has no graphs for the domain '{name}': their values are too similar")
        domain[rows], split[rows] = index, kind
    selected = np.flatnonzero(domain >= 0)
    names, subset = tuple(name for name, _, _ in groups), dataset.subset(selected)
    subset = replace(subset, domain=domain[selected], domains=names, split=split[selected])
    dropped = len(dataset) - len(selected)
    return subset.with_notes(*[f"{dropped:,} graphs outside the ranges of the shift were dropped"] if dropped else [])
