"""Published sets of graphs that have to be fetched by hand: their home, their sizes, and finding their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from holdfast.core.errors import Absent, BadInput, unknown
from holdfast.core.inputs import Graphs
from holdfast.core.seeds import derive
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.readers import formats
from holdfast.data.readers.graphs import read_graphs
from holdfast.data.readers.molecules import as_molecules, by_scaffold, smiles_column
from holdfast.data.readers.table import read_table

TU = "https://chrsmrrs.github.io/datasets/"
DIG = "https://github.com/divelab/DIG"
PICKLED = "TU's files A, graph_indicator, graph_labels and node_attributes: the published pickles are not opened"
OGB = "https://ogb.stanford.edu/docs/graphprop/"


@dataclass(frozen=True, kw_only=True)
class GraphSet:
    """One of TU's sets: its name there, and how many graphs it has."""

    name: str
    official: str
    size: int
    home: str = TU
    holds: str = ""  # what its files must be, where they are not published as TU's

    def read(self, *, data_dir: Path | None = None, fold: int | None = None) -> Dataset:
        """The set in a folder, as a zip, a folder or one text file; `fold` marks a test fold of a zip with folds."""
        found = read_graphs(self._find(data_dir), fold=fold)
        if len(found.domains) > 1:
            raise BadInput(f"{self.name} is one set, and its file in {data_dir} holds {len(found.domains)}: keep one")
        notes = found.notes
        if len(found) != self.size:
            notes = (*notes, f"{self.name} has not the published number of graphs: {len(found):,}, not {self.size:,}")
        return replace(found, name=self.name, domains=(self.name,), notes=notes).checked()

    def _find(self, folder: Path | None) -> Path:
        stems = dict.fromkeys((self.official, self.official.replace("-", ""), self.name))
        for stem in stems if folder is not None else ():
            for suffix in (".zip", "", ".txt"):
                path = Path(folder or "").expanduser() / f"{stem}{suffix}"
                if path.exists():
                    return path
        raise _absent(self.name, self.home, f"{self.official}.zip", folder, self.holds)


@dataclass(frozen=True, kw_only=True)
class MoleculeSet:
    """One of OGB's sets of molecules with its scaffold split."""

    name: str
    sizes: Mapping[str, int]  # split -> published number of molecules
    home: str = OGB

    def read(self, *, data_dir: Path | None = None) -> Dataset:
        """The set in a table of its own, or its rows in a table `molecules` of several sets."""
        path = self._find(data_dir)
        shared = path.stem == "molecules"
        column = smiles_column(path, None)
        if column is None:
            raise BadInput(f"{path} has no column smiles: {self._columns()}")
        found = read_table(path, columns={"text": column}, need=("label", "domain") if shared else ("label",))
        if shared and self.name not in found.domains:
            raise BadInput(f"{path} has no rows of the domain {self.name}: its domains are {', '.join(found.domains)}")
        rows = found.rows_of(self.name) if shared else np.arange(len(found))
        made = as_molecules(found, rows, str(path))
        made = replace(made, name=self.name, domain=np.zeros(len(rows), dtype=np.int64), domains=(self.name,))
        return replace(made, notes=(*made.notes, *self._differences(made))).checked()

    def _find(self, folder: Path | None) -> Path:
        for stem in (self.name, f"ogbg-mol{self.name}", "molecules") if folder is not None else ():
            for suffix in formats.SUFFIXES:
                path = Path(folder or "").expanduser() / f"{stem}{suffix}"
                if path.is_file():
                    return path
        raise _absent(self.name, self.home, f"{self.name}.csv, .jsonl or .parquet", folder, self._columns())

    def _columns(self) -> str:
        return "the columns smiles, label (0, 1) and split (train, valid, test: the scaffold split)"

    def _differences(self, found: Dataset) -> list[str]:
        split = found.split
        here = {kind: 0 if split is None else int((split == SPLITS.index(kind)).sum()) for kind in self.sizes}
        told = [f"{kind} {here[kind]:,} instead of {n:,}" for kind, n in self.sizes.items() if here[kind] != n]
        return [f"{self.name} has not the published number of molecules: {', '.join(told)}"] if told else []


def _absent(name: str, home: str, file: str, folder: Path | None, columns: str = "") -> Absent:
    place = "a folder that you name with --data-dir" if folder is None else str(folder)
    return Absent(
        f"the data set {name} is not downloaded by itself: get it from {home} and put {file} into {place}"
        f"{f', with {columns}' if columns else ''}"
    )


IMDB_BINARY = GraphSet(name="imdb-binary", official="IMDB-BINARY", size=1000)
IMDB_MULTI = GraphSet(name="imdb-multi", official="IMDB-MULTI", size=1500)
REDDIT_BINARY = GraphSet(name="reddit-binary", official="REDDIT-BINARY", size=2000)
REDDIT_MULTI_5K = GraphSet(name="reddit-multi-5k", official="REDDIT-MULTI-5K", size=4999)
REDDIT_MULTI_12K = GraphSet(name="reddit-multi-12k", official="REDDIT-MULTI-12K", size=11929)
GRAPH_SST5 = GraphSet(name="graph-sst5", official="Graph-SST5", size=11_855, home=DIG, holds=PICKLED)
GRAPH_TWITTER = GraphSet(name="graph-twitter", official="Graph-Twitter", size=6940, home=DIG, holds=PICKLED)
NCI1 = GraphSet(name="nci1", official="NCI1", size=4110)
NCI109 = GraphSet(name="nci109", official="NCI109", size=4127)
PROTEINS = GraphSet(name="proteins", official="PROTEINS", size=1113)
DD = GraphSet(name="dd", official="DD", size=1178)
BACE = MoleculeSet(name="bace", sizes={"train": 1210, "valid": 151, "test": 152})
BBBP = MoleculeSet(name="bbbp", sizes={"train": 1631, "valid": 204, "test": 204})
HIV = MoleculeSet(name="hiv", sizes={"train": 32_901, "valid": 4113, "test": 4113})


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
