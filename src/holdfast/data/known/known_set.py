"""One published data set as the table describes it: finding its files and comparing them with what was published."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import Absent, BadInput
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.known import table
from holdfast.data.readers import formats

Spellings = Mapping[str, Sequence[str]]  # name -> other spellings in files
TABLE_FILE = "{}.csv, .jsonl or .parquet"


@dataclass(frozen=True, kw_only=True)
class KnownSet:
    """A row of `sets.toml`, which documents the fields."""

    name: str
    about: str
    reader: str
    home: str = ""
    files: Sequence[str] = ()
    labels: Spellings = field(default_factory=dict)
    domains: Spellings = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    classes: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # further keys of the row

    @staticmethod
    def of(name: str) -> KnownSet:
        row = dict(table()[name])
        known = {key: row.pop(key) for key in {field.name for field in fields(KnownSet)} & row.keys()}
        return KnownSet(**{"files": (name,), "domains": {name: ()}, **known}, name=name, options=row)

    def load_reader(self) -> Callable[..., Dataset]:
        """Import the reader and bind this data set."""
        module, _, function = self.reader.partition(":")
        return partial(getattr(importlib.import_module(f"holdfast.data.known.{module}"), function), self)

    def find(self, data_dir: Path | None, expected: str, suffixes: Sequence[str] = formats.SUFFIXES) -> Path:
        """Return the first file of this data set in `data_dir`; with the suffix "" it may be a folder.

        `expected` is what to put where if it is missing, for example `x.csv into FOLDER`.
        """
        for stem in self.files if data_dir is not None else ():
            for suffix in suffixes:
                path = Path(data_dir or "").expanduser() / f"{stem}{suffix}"
                if path.is_file() or (not suffix and path.is_dir()):
                    return path
        raise self.absent(data_dir, expected)

    def find_folder(self, data_dir: Path | None, expected: str, complete: Callable[[Path], bool]) -> Path:
        """Return the complete folder of this data set in `data_dir`, or `data_dir` itself."""
        root = Path(data_dir or "").expanduser()
        for folder in () if data_dir is None else (*(root / name for name in self.files), root):
            if folder.is_dir() and complete(folder):
                return folder
        raise self.absent(data_dir, expected)

    def absent(self, data_dir: Path | None, expected: str, *, reason: str = "") -> Absent:
        folder = "a folder that you pass with --data-dir" if data_dir is None else str(data_dir)
        where = f"get it from {self.home} and put {expected.replace('FOLDER', folder)}"
        return Absent(f"the data set {self.name} is not downloaded automatically: {reason}{where}")

    def renamed(self, dataset: Dataset, where: Path) -> Dataset:
        """Return the data set with the published names of its domains and, if there are any, of its labels."""
        y, classes = dataset.y, dataset.classes
        if self.labels:
            y, classes = _rename_codes(y, classes, self.labels, f"{where}: label")
        domain, domains = _rename_codes(dataset.domain, dataset.domains, self.domains, f"{where}: domain")
        return replace(dataset, name=self.name, y=y, classes=classes, domain=domain, domains=domains)

    def finish(self, dataset: Dataset, unit: str = "examples", *, notes: Sequence[str] = ()) -> Dataset:
        """Name the data set and add notes, among them where its sizes differ from the published ones."""
        differences = []
        nested = all(isinstance(sizes, Mapping) for sizes in self.sizes.values())
        for domain, sizes in (self.sizes if nested else {"": self.sizes}).items():
            rows = dataset.rows_of(domain) if domain else np.arange(len(dataset))
            for kind, published in sizes.items():
                count = len(rows)
                if kind != "all":
                    count = int((dataset.split_codes[rows] == SPLITS.index(kind)).sum())
                if count != published:
                    where = " ".join(word for word in (domain, kind) if word not in ("", "all"))
                    differences.append(f"{where + ' ' if where else ''}{count:,} instead of {published:,}")
        if self.classes and len(dataset.classes) != self.classes:
            differences.append(f"{len(dataset.classes):,} classes instead of {self.classes:,}")
        if differences:
            notes = (*notes, f"{self.name} does not have the published number of {unit}: {', '.join(differences)}")
        return replace(dataset.with_notes(*notes), name=self.name)


def _rename_codes(
    codes: np.ndarray, names: Sequence[str], wanted: Spellings, what: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Recode to the published names; raise if a name is not one of their spellings."""
    order = list(wanted)
    spelling = {word.lower(): name for name, others in wanted.items() for word in (name, *others)}
    mapping = np.full(len(names), -1, dtype=np.int64)
    for code in map(int, np.unique(codes)):  # names without rows are ignored
        name = spelling.get(names[code].lower())
        if name is None:
            raise BadInput(f"{what} '{names[code]}' is not one of {', '.join(order)}: rename or remove it")
        mapping[code] = order.index(name)
    return mapping[codes], tuple(order)
