"""Published sets of texts and pairs of texts, and of rows with columns of several kinds, read from tables."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from holdfast.core.errors import BadInput, check_known
from holdfast.core.seeds import generator
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.known.base import TABLE_FILE, KnownSet
from holdfast.data.raw import Texts
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.table import read_table

LEAKS = ("keep", "drop")
NO_LABEL = ("-", "-1")  # marks pairs without annotator agreement in SNLI


def read_texts(
    known: KnownSet, *, data_dir: Path | None = None, leaks: str = "keep", seed: int | None = None
) -> Dataset:
    """Read the table of a data set; labels and domains get their published names.

    `leaks=drop` drops validation and test rows whose text is in the training split. `seed` (default 0) draws the split
    of a data set that was published without one.
    """
    pairs, draw = known.options.get("pairs", False), known.options.get("draw_split", False)
    check_known("setting leaks", leaks, LEAKS)
    if seed is not None and not draw:
        raise BadInput(f"{known.name} was published with a split, so `seed` has no effect: remove seed={seed}")
    path = known.find(data_dir, f"{TABLE_FILE.format(known.name)} into FOLDER, with {_columns(known)}")
    several = len(known.domains) > 1
    need = ("label", "domain") if several else ("label",)
    dataset = read_table(path, ReadOptions({"split": ""} if draw else None, need))
    if not isinstance(dataset.raw, Texts) or (dataset.raw.second is not None) != pairs:
        raise BadInput(f"{path} does not have the columns of {known.name}: it needs {_columns(known)}")
    unlabelled = np.isin(dataset.y, [dataset.classes.index(label) for label in NO_LABEL if label in dataset.classes])
    dataset = _drop(dataset, unlabelled, f"{int(unlabelled.sum()):,} examples without a label were dropped")
    dataset = dataset if several else dataset.as_one_domain(*known.domains)
    dataset = known.renamed(dataset, path).checked()
    if draw:
        dataset = replace(dataset, split=draw_split(dataset, known.sizes, seed or 0))
    leaked = _is_leaked(dataset)
    counts = f"{_count(dataset, leaked)} texts are also in train"
    if leaks == "drop":
        return _drop(dataset, leaked, f"{counts} and were dropped")
    report = known.options.get("report_leaks") and leaked.any()
    dataset = known.finish(dataset)
    return dataset.with_notes(f"{known.name}: {counts}; {known.name}@leaks=drop drops them") if report else dataset


def read_table_set(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read the table of a data set with one row per example; labels and domains get their published names.

    The key `columns` of the data set maps roles to the published column names; all other columns are inputs, whose
    kinds are inferred as for any table. Several spellings of one label, such as the grades 1 to 4 of a disease, become
    one class. Without `labels`, labels are the values of the column, such as numbers to predict.
    """
    columns: dict[str, str] = known.options["columns"]
    needed = ", ".join(columns[role] for role in ("label", "domain"))
    path = known.find(data_dir, f"the table of {known.name} into FOLDER, with the columns {needed}")
    return known.finish(known.renamed(read_table(path, ReadOptions(columns)), path).checked())


def _columns(known: KnownSet) -> str:
    inputs = "premise, hypothesis" if known.options.get("pairs") else "text"
    domain = f", domain ({', '.join(known.domains)})" if len(known.domains) > 1 else ""
    split = "" if known.options.get("draw_split") else " and split (train, dev, test)"
    return f"the columns {inputs}, label ({', '.join(known.labels)}){domain}{split}"


def _drop(dataset: Dataset, rows: np.ndarray, note: str) -> Dataset:
    """Drop the rows where the mask (n,) is true, with a note."""
    return dataset.subset(np.flatnonzero(~rows)).with_notes(f"{dataset.name}: {note}") if rows.any() else dataset


def draw_split(dataset: Dataset, sizes: Mapping[str, int], seed: int) -> np.ndarray:
    """Draw a split (n,) in the published sizes, or in their proportion if the number of rows differs."""
    valid, test = (round(len(dataset) * sizes[kind] / sum(sizes.values())) for kind in SPLITS[1:])
    order = torch.randperm(len(dataset), generator=generator(seed, "cut", dataset.name)).numpy()
    split = np.zeros(len(dataset), dtype=np.int64)
    split[order[:valid]] = 1
    split[order[valid : valid + test]] = 2
    return split


def _is_leaked(dataset: Dataset) -> np.ndarray:
    """Return a mask (n,) of validation and test rows whose text is also in the training split."""
    texts = dataset.raw.take(np.arange(len(dataset)))
    pairs = list(zip(texts, dataset.split_codes, strict=True))
    seen = {text for text, split in pairs if split == 0}
    return np.asarray([split > 0 and text in seen for text, split in pairs], dtype=bool)


def _count(dataset: Dataset, leaked: np.ndarray) -> str:
    """Return for example `52 of 139 test and 43 of 114 valid`."""
    rows = {kind: dataset.split_codes == SPLITS.index(kind) for kind in ("test", "valid")}
    return " and ".join(f"{int((leaked & at).sum()):,} of {int(at.sum()):,} {kind}" for kind, at in rows.items())
