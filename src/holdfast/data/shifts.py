"""One pool of graphs cut by a property into what is trained on and what is not: shifts of size, degree and scaffold.

n graphs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Graphs
from holdfast.core.seeds import derive
from holdfast.data.domain import SPLITS, Dataset
from holdfast.data.scaffolds import by_scaffold

GROUPS = ("quantile", "chance")
_TRAIN, _VALID, _TEST = (SPLITS.index(name) for name in ("train", "valid", "test"))


@dataclass(frozen=True, slots=True)
class Shift:
    """A property of a graph, and the percentiles between which graphs train, choose and are scored."""

    what: str  # size or degree
    names: tuple[str, str, str]  # of the domains that train, choose and are scored
    train: tuple[float, float]  # above the first percentile, up to the second
    valid: tuple[float, float] | None
    test: tuple[float, float]
    least_edges: int = 0  # graphs with fewer edges, counted both ways, are left out


# size: Bevilacqua et al. (2021); degree: graphs of two edges or fewer are left out, as in the code of CIGA
SHIFTS = {
    "size": Shift("size", ("small", "middle", "large"), (0, 50), None, (90, 100)),
    "degree": Shift("degree", ("low", "middle", "high"), (0, 50), (50, 80), (80, 100), least_edges=3),
    "degree-reversed": Shift("degree", ("high", "middle", "low"), (50, 100), (20, 50), (0, 20), least_edges=3),
}


SCAFFOLD = ("common", "rarer", "rare")
NAMES = (*SHIFTS, "scaffold")


class _Cut(NamedTuple):
    """Rows that train, in the order of the property, that choose, or none, and that are scored."""

    names: tuple[str, str, str]
    train: np.ndarray
    valid: np.ndarray | None
    test: np.ndarray


def shifted(dataset: Dataset, shift: str, *, environments: int = 2, group: str = "quantile") -> Dataset:
    """Graphs that train, choose and are scored as domains with their split; graphs between are left out.

    The training graphs are cut into equally large domains, environments, for rules that compare some: by quantiles of
    the same property (of scaffolds, how common they are), or by chance. Domains and labels are not read.
    """
    if shift not in NAMES:
        raise unknown("shift", shift, NAMES)
    if group not in GROUPS:
        raise unknown("way to group", group, GROUPS)
    if type(environments) is not int or environments < 1:
        raise BadInput(f"environments must be a whole number of 1 or more, not {environments!r}")
    if dataset.raw.kind != "graph":
        raise BadInput(f"the shift '{shift}' is one of graphs, and {dataset.name} holds {dataset.raw.kind}s")
    cut = _Cut(SCAFFOLD, *by_scaffold(dataset)) if shift == "scaffold" else _by_property(dataset, SHIFTS[shift])
    train = cut.train
    if len(train) < environments:
        raise BadInput(f"{dataset.name} has {len(train)} graphs to train on, too few for {environments} environments")
    if group == "chance":
        train = np.random.default_rng(derive(0, "environments", dataset.name)).permutation(np.sort(train))
    first, second, third = cut.names
    names = [first] if environments == 1 else [f"{first}-{i + 1}" for i in range(environments)]
    parts = [(name, rows, _TRAIN) for name, rows in zip(names, np.array_split(train, environments), strict=True)]
    if cut.valid is not None:
        parts.append((second, cut.valid, _VALID))
    parts.append((third, cut.test, _TEST))
    return _parted(dataset, parts)


def _by_property(dataset: Dataset, rule: Shift) -> _Cut:
    """Percentiles are those of all graphs, whatever their domain."""
    graphs = dataset.raw.take(np.arange(len(dataset)))
    known = np.flatnonzero([graph.edges.shape[1] >= rule.least_edges for graph in graphs])
    values = measured(rule.what, [graphs[i] for i in known])
    inside = partial(_between, values)
    chosen = inside(rule.train)
    train = known[chosen][np.argsort(values[chosen], kind="stable")]
    valid = None if rule.valid is None else known[inside(rule.valid)]
    return _Cut(rule.names, train, valid, known[inside(rule.test)])


def measured(what: str, graphs: Sequence[Graphs]) -> np.ndarray:
    """(n,) the size of each graph, or its mean degree: edges, counted both ways, for each node."""
    sizes = np.asarray([len(graph.nodes) for graph in graphs], dtype=np.float64)
    if what == "size":
        return sizes
    return np.asarray([graph.edges.shape[1] for graph in graphs]) / np.maximum(sizes, 1)


def _between(values: np.ndarray, share: tuple[float, float]) -> np.ndarray:
    """(n,) above the value at the first percentile, or from the least on, up to that at the second."""
    if not len(values):
        return np.zeros(0, dtype=bool)
    low, high = np.percentile(values, share)
    return (values <= high) & ((values > low) | (share[0] == 0))


def _parted(dataset: Dataset, parts: Sequence[tuple[str, np.ndarray, int]]) -> Dataset:
    domain, split = np.full(len(dataset), -1, dtype=np.int64), np.full(len(dataset), -1, dtype=np.int64)
    for index, (name, rows, kind) in enumerate(parts):
        if not len(rows):
            raise BadInput(f"{dataset.name} has no graphs for the domain '{name}': their values are too much alike")
        domain[rows], split[rows] = index, kind
    kept = np.flatnonzero(domain >= 0)
    names = tuple(name for name, _, _ in parts)
    made = replace(dataset.subset(kept), domain=domain[kept], domains=names, split=split[kept])
    left = len(dataset) - len(kept)
    told = [f"{left:,} graphs between the parts of the shift left out"] if left else []
    return replace(made, notes=(*made.notes, *told))
