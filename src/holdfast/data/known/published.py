"""Published data sets that have to be fetched by hand: their home, their sizes, and reading them from a table.

n examples
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from holdfast.core.errors import Absent, BadInput, unknown
from holdfast.core.seeds import generator
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.raw import Texts
from holdfast.data.readers import formats
from holdfast.data.readers.table import read_table

Spellings = Mapping[str, tuple[str, ...]]  # a name -> other ways in which files write it

SENTIMENT: Spellings = {"negative": ("neg", "0"), "positive": ("pos", "1")}
INFERENCE: Spellings = {"contradiction": ("c",), "entailment": ("e",), "neutral": ("n",)}  # numbers mean no one thing
LEAKS = ("keep", "drop")
NO_LABEL = ("-", "-1")  # how SNLI marks pairs on which its readers did not agree


@dataclass(frozen=True, kw_only=True)
class Published:
    """One data set: where it is published, under which names its file is looked for, and what it must hold."""

    name: str
    home: str
    stems: tuple[str, ...]  # further names of the file
    labels: Spellings
    domains: Spellings
    sizes: Mapping[str, Mapping[str, int]]  # domain -> split, or `all` -> published number of examples
    pairs: bool = False
    cut: bool = False  # no split came with it: it is drawn in the published sizes
    leaky: bool = False  # some of what is scored is trained on too

    def read(self, *, data_dir: Path | None = None, leaks: str = "keep", seed: int | None = None) -> Dataset:
        """The table of this set in a folder, with its labels and domains called as they are published.

        `leaks=drop` leaves out rows of valid and test whose text is in train. `seed` draws the split where none was
        published, 0 where it is not given.
        """
        if leaks not in LEAKS:
            raise unknown("setting leaks", leaks, LEAKS)
        if seed is not None and not self.cut:
            raise BadInput(f"{self.name} has a split of its own, so there is none to draw: leave seed out")
        path = find_table((self.name, *self.stems), data_dir)
        if path is None:
            raise self._absent(data_dir)
        several = len(self.domains) > 1
        columns = {"split": ""} if self.cut else None
        found = read_table(path, columns=columns, need=("label", "domain") if several else ("label",))
        if not isinstance(found.raw, Texts) or (found.raw.second is not None) != self.pairs:
            raise BadInput(f"{path} has not the columns of {self.name}: it needs {self._columns()}")
        found = _without(found, NO_LABEL)
        y, classes = _renamed(found.y, found.classes, self.labels, f"{path}: label")
        domain, domains = np.zeros(len(found), dtype=np.int64), tuple(self.domains)
        if several:
            domain, domains = _renamed(found.domain, found.domains, self.domains, f"{path}: domain")
        made = replace(found, name=self.name, y=y, classes=classes, domain=domain, domains=domains).checked()
        if self.cut:
            made = replace(made, split=drawn(made, self.sizes[self.name], seed or 0))
        told = differences(self.name, self.sizes, made)
        if leaks == "drop":
            return without_leaks(made)
        if self.leaky:
            told += leaks_told(made)
        return replace(made, notes=(*made.notes, *told))

    def _absent(self, folder: Path | None) -> Absent:
        place = "a folder that you name with --data-dir" if folder is None else str(folder)
        return Absent(
            f"the data set {self.name} is not downloaded by itself: get it from {self.home} and put {self.name}.csv, "
            f".jsonl or .parquet into {place}, with {self._columns()}"
        )

    def _columns(self) -> str:
        given = "premise, hypothesis" if self.pairs else "text"
        labels, domain = ", ".join(self.labels), ""
        if len(self.domains) > 1:
            domain = f", domain ({', '.join(self.domains)})"
        split = "" if self.cut else " and split (train, dev, test)"
        return f"the columns {given}, label ({labels}){domain}{split}"


def _without(found: Dataset, labels: Sequence[str]) -> Dataset:
    """The data set without rows of these labels, and a note that says how many there were."""
    gone = np.isin(found.y, [found.classes.index(label) for label in labels if label in found.classes])
    if not gone.any():
        return found
    kept = found.subset(np.flatnonzero(~gone))
    return replace(kept, notes=(*kept.notes, f"{found.name}: {int(gone.sum()):,} examples without a label left out"))


def _renamed(
    codes: np.ndarray, names: Sequence[str], wanted: Spellings, what: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(n,) codes into the wanted names; one sentence where a name is neither wanted nor another spelling."""
    order = list(wanted)
    spelt = {word: name for name, others in wanted.items() for word in (name, *others)}
    table = np.full(len(names), -1, dtype=np.int64)
    for code in map(int, np.unique(codes)):  # a name that no row has may be anything
        name = spelt.get(names[code].lower())
        if name is None:
            raise BadInput(f"{what} '{names[code]}' is not one of {', '.join(order)}: rename it in the file")
        table[code] = order.index(name)
    return table[codes], tuple(order)


AMAZON = Published(
    name="amazon",
    home="https://www.cs.jhu.edu/~mdredze/datasets/sentiment/",
    stems=("amazon_blitzer",),
    labels=SENTIMENT,
    domains={"books": ("book",), "dvd": ("dvds",), "electronics": (), "kitchen": ("kitchen_&_housewares",)},
    sizes={domain: {"all": 2000} for domain in ("books", "dvd", "electronics", "kitchen")},
)
MNLI = Published(
    name="mnli",
    home="https://github.com/eyalbd2/PADA",
    stems=("mnli_pada",),
    labels=INFERENCE,
    domains={"fiction": (), "government": (), "slate": (), "telephone": (), "travel": ()},
    sizes={
        "fiction": {"train": 2547, "valid": 1973},
        "government": {"train": 2541, "valid": 1945},
        "slate": {"train": 2605, "valid": 1955},
        "telephone": {"train": 2754, "valid": 1966},
        "travel": {"train": 2541, "valid": 1976},
    },
    pairs=True,
)
MULTINLI = Published(
    name="multinli",
    home="https://cims.nyu.edu/~sbowman/multinli/",
    stems=(*MNLI.stems, MNLI.name),
    labels=INFERENCE,
    domains=MNLI.domains,
    sizes={
        "fiction": {"train": 77_348, "valid": 1973},
        "government": {"train": 77_350, "valid": 1945},
        "slate": {"train": 77_306, "valid": 1955},
        "telephone": {"train": 83_348, "valid": 1966},
        "travel": {"train": 77_350, "valid": 1976},
    },
    pairs=True,
)
SNLI = Published(
    name="snli",
    home="https://nlp.stanford.edu/projects/snli/",
    stems=(),
    labels=INFERENCE,
    domains={"snli": ()},
    sizes={"snli": {"test": 9824}},
    pairs=True,
)
SICK = Published(
    name="sick",
    home="http://marcobaroni.org/composes/sick.html",
    stems=(),
    labels=INFERENCE,
    domains={"sick": ()},
    sizes={"sick": {"train": 4500, "valid": 500, "test": 4927}},
    pairs=True,
)
SST2 = Published(
    name="sst2",
    home="https://nlp.stanford.edu/sentiment/",
    stems=(),
    labels=SENTIMENT,
    domains={"sst2": ()},
    sizes={"sst2": {"valid": 872, "test": 1821}},
)
IMDB = Published(
    name="imdb",
    home="https://ai.stanford.edu/~amaas/data/sentiment/",
    stems=("imdb_test_5k",),
    labels=SENTIMENT,
    domains={"imdb": ()},
    sizes={"imdb": {"test": 25000}},
)


Sizes = Mapping[str, Mapping[str, int]]  # domain -> split, or `all` -> published number of examples


def find_table(stems: Sequence[str], folder: Path | None, more: Sequence[str] = ()) -> Path | None:
    """The first file of one of these names and a suffix of tables, or another one that is named."""
    for stem in stems if folder is not None else ():
        for suffix in (*formats.SUFFIXES, *more):
            path = Path(folder or "").expanduser() / f"{stem}{suffix}"
            if path.is_file():
                return path
    return None


def differences(name: str, published: Sizes, found: Dataset) -> list[str]:
    """One sentence where the file does not hold as many examples as were published."""
    told = []
    for domain, sizes in published.items():
        rows = found.rows_of(domain)
        for kind, size in sizes.items():
            here = len(rows)
            if kind != "all":
                here = 0 if found.split is None else int((found.split[rows] == SPLITS.index(kind)).sum())
            if here != size:
                where = "" if domain == name else f"{domain} "
                told.append(f"{where}{kind} {here:,} instead of {size:,}")
    return [f"{name} has not the published number of examples: {', '.join(told)}"] if told else []


def drawn(found: Dataset, sizes: Mapping[str, int], seed: int) -> np.ndarray:
    """(n,) a split drawn by the seed, in the published sizes or, of another number of rows, in their proportion."""
    held = [round(len(found) * sizes[kind] / sum(sizes.values())) for kind in SPLITS[1:]]
    order = torch.randperm(len(found), generator=generator(seed, "cut", found.name)).numpy()
    split = np.zeros(len(found), dtype=np.int64)
    split[order[: held[0]]] = 1
    split[order[held[0] : sum(held)]] = 2
    return split


def _leaked(found: Dataset) -> np.ndarray:
    """(n,) whether a row of valid or test has a text that train has too."""
    if found.split is None:
        return np.zeros(len(found), dtype=bool)
    texts = found.raw.take(np.arange(len(found)))
    seen = {text for text, split in zip(texts, found.split, strict=True) if split == 0}
    return np.asarray([split > 0 and text in seen for text, split in zip(texts, found.split, strict=True)])


def _counted(found: Dataset) -> str:
    """`52 of 139 test and 43 of 114 valid`."""
    assert found.split is not None
    leaked, told = _leaked(found), []
    for kind in ("test", "valid"):
        here = found.split == SPLITS.index(kind)
        told.append(f"{int((leaked & here).sum()):,} of {int(here.sum()):,} {kind}")
    return " and ".join(told)


def leaks_told(found: Dataset) -> list[str]:
    if not _leaked(found).any():
        return []
    return [f"{found.name}: {_counted(found)} texts are in train too; {found.name}@leaks=drop leaves them out"]


def without_leaks(found: Dataset) -> Dataset:
    leaked = _leaked(found)
    if not leaked.any():
        return found
    kept = found.subset(np.flatnonzero(~leaked))
    note = f"{found.name}: {_counted(found)} texts are in train too and are left out"
    return replace(kept, notes=(*kept.notes, note))
