"""The dialogue data of progressive memory banks: lines of films, and pairs of Ubuntu's channel drawn from many.

n pairs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from holdfast.core.errors import Absent, BadInput
from holdfast.core.seeds import generator
from holdfast.data.dataset import SPLITS, Dataset, join
from holdfast.data.raw import Texts
from holdfast.data.readers import formats
from holdfast.data.readers.columns import SYNONYMS, find
from holdfast.data.readers.names import SPLIT_NAMES
from holdfast.data.readers.table import read_table

FILMS, UBUNTU = "films", "ubuntu"
STEMS = {FILMS: ("cornell_pairs", "cornell"), UBUNTU: ("ubuntu_pairs", "irc_pairs", "ubuntu")}
SPELT = {FILMS: ("films", "cornell_movie", "cornell"), UBUNTU: ("ubuntu",)}
HOMES = {
    FILMS: "https://www.cs.cornell.edu/~cristian/Cornell_Movie-Dialogs_Corpus.html",
    UBUNTU: "https://github.com/rkadlec/ubuntu-ranking-dataset-creator",
}
FILM_PAIRS = 220_000  # about so many were published, 10,000 of them to validate and 10,000 to test
DRAWN = {"train": 9_000, "valid": 3_000, "test": 3_000}  # of Ubuntu: a small domain is the point


def read_dialogue(*, data_dir: Path | None = None) -> Dataset:
    """Both domains from their tables; of Ubuntu no more than were published, drawn once and for all.

    Of a table that holds other domains too, those rows are left out. Rows whose split is no train, valid or test
    are cut by the seed of a run.
    """
    films, ubuntu = (_read(name, data_dir) for name in (FILMS, UBUNTU))
    notes = []
    if len(films) < FILM_PAIRS:
        notes.append(f"dialogue has {len(films):,} pairs of films, about {FILM_PAIRS:,} were published")
    kept = _drawn(ubuntu)
    if len(kept) < len(ubuntu):
        notes.append(
            f"{len(kept):,} of the {len(ubuntu):,} pairs of Ubuntu are used, no more of a split than published"
        )
    found = join([films, ubuntu.subset(kept)])
    return replace(found, name="dialogue", notes=(*found.notes, *notes)).checked(labels=False)


def _read(name: str, folder: Path | None) -> Dataset:
    path = _find(name, folder)
    found = read_table(path, columns={"split": ""}, need=())
    if not isinstance(found.raw, Texts) or found.raw.second is None:
        raise BadInput(f"{path} has not the columns of dialogue: it needs message, response and split")
    codes = [i for i, domain in enumerate(found.domains) if domain in SPELT[name]]
    rows = np.flatnonzero(np.isin(found.domain, codes)) if len(found.domains) > 1 else np.arange(len(found))
    if not len(rows):
        raise BadInput(f"{path} has no row of the domain {name}: it has {', '.join(found.domains)}")
    split = _splits(path, len(found))[rows]
    kept = replace(found.subset(rows), domain=np.zeros(len(rows), dtype=np.int64), domains=(name,))
    none = np.full(len(rows), -1)
    return replace(kept, y=none, classes=(), split=split if (split >= 0).all() else None)


def _find(name: str, folder: Path | None) -> Path:
    for stem in STEMS[name] if folder is not None else ():
        for suffix in formats.SUFFIXES:
            path = Path(folder or "").expanduser() / f"{stem}{suffix}"
            if path.is_file():
                return path
    place = "a folder that you name with --data-dir" if folder is None else str(folder)
    raise Absent(
        f"the data set dialogue is not downloaded by itself: get {name} from {HOMES[name]}, make pairs of a line and "
        f"the next, and put {STEMS[name][0]}.csv, .jsonl or .parquet into {place}, with the columns message and "
        "response, and split (train, dev, test) where there is one"
    )


def _splits(path: Path, rows: int) -> np.ndarray:
    """(n,) indices into SPLITS; -1 for a split of any other name, as rows that will not be used may have."""
    column = find(formats.read_schema(path).names, SYNONYMS["split"])
    if column is None:
        return np.full(rows, -1)
    named: Sequence[str | None] = [
        value
        for batch in formats.iter_batches(path, {column: pa.large_string()})
        for value in batch.column(column).to_pylist()
    ]
    return np.asarray([SPLIT_NAMES.get(str(value).strip().lower(), -1) for value in named], dtype=np.int64)


def _drawn(ubuntu: Dataset) -> np.ndarray:
    """(n,) rows in file order: at most the published number of each split, or of all where none is named."""
    most = DRAWN if ubuntu.split is not None else {"all": sum(DRAWN.values())}
    kept = []
    for kind, size in most.items():
        rows = np.arange(len(ubuntu)) if ubuntu.split is None else np.flatnonzero(ubuntu.split == SPLITS.index(kind))
        order = torch.randperm(len(rows), generator=generator(0, "dialogue", kind)).numpy()
        kept.append(rows[order[:size]])
    return np.sort(np.concatenate(kept))
