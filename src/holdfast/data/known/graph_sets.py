"""Published sets of graphs that have to be fetched by hand: their home, their sizes, and finding their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from holdfast.core.errors import Absent, BadInput
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.readers import formats
from holdfast.data.readers.graphs import read_graphs
from holdfast.data.readers.molecules import as_molecules, smiles_column
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
