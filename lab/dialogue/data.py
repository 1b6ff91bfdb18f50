"""The dialogue data of progressive memory banks: pairs of film lines, then a small sample of Ubuntu chat pairs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator
from holdfast.data.dataset import SPLITS, Dataset, join
from holdfast.data.known.known_set import TABLE_FILE, KnownSet
from holdfast.data.raw import Texts
from holdfast.data.readers import formats
from holdfast.data.readers.codes import SPLIT_NAMES
from holdfast.data.readers.columns import SYNONYMS, ReadOptions, find
from holdfast.data.readers.tables import read_table

KNOWN = KnownSet(name="dialogue", about="films, then Ubuntu support chats", reader="")
FILMS, UBUNTU = "films", "ubuntu"
STEMS = {FILMS: ("cornell_pairs", "cornell"), UBUNTU: ("ubuntu_pairs", "irc_pairs", "ubuntu")}
SPELLINGS = {FILMS: ("films", "cornell_movie", "cornell"), UBUNTU: ("ubuntu",)}
HOMES = {
    FILMS: "https://www.cs.cornell.edu/~cristian/Cornell_Movie-Dialogs_Corpus.html",
    UBUNTU: "https://github.com/rkadlec/ubuntu-ranking-dataset-creator",
}
FILM_PAIRS = 220_000  # approximate published number, of which 10,000 validate and 10,000 test
DRAWN = {"train": 9_000, "valid": 3_000, "test": 3_000}  # from Ubuntu, which is meant to be a small domain


def read_dialogue(*, data_dir: Path | None = None) -> Dataset:
    """Read both domains from their tables; from Ubuntu a fixed random sample of the published size is used.

    Rows of other domains in a table are dropped. Rows whose split is not train, valid or test are split with the seed
    of the run.
    """
    films, ubuntu = (_read(name, data_dir) for name in (FILMS, UBUNTU))
    notes = []
    if len(films) < FILM_PAIRS:
        notes.append(f"dialogue has {len(films):,} film pairs, about {FILM_PAIRS:,} were published")
    sample = _draw(ubuntu)
    if len(sample) < len(ubuntu):
        notes.append(f"{len(sample):,} of the {len(ubuntu):,} Ubuntu pairs are used, at most the published number")
    return KNOWN.finish(join([films, ubuntu.subset(sample)]), notes=notes).checked(labels=False)


def _read(name: str, data_dir: Path | None) -> Dataset:
    columns = "with the columns message and response, and split (train, dev, test) if there is one"
    expected = f"{TABLE_FILE.format(STEMS[name][0])} with pairs of successive lines into FOLDER, {columns}"
    path = replace(KNOWN, files=STEMS[name], home=f"{HOMES[name]} ({name})").find(data_dir, expected)
    dataset = read_table(path, ReadOptions({"split": ""}, need=()))
    if not isinstance(dataset.raw, Texts) or dataset.raw.second is None:
        raise BadInput(f"{path} does not have the columns of dialogue: it needs message, response and split")
    codes = [i for i, domain in enumerate(dataset.domains) if domain in SPELLINGS[name]]
    rows = np.flatnonzero(np.isin(dataset.domain, codes)) if len(dataset.domains) > 1 else np.arange(len(dataset))
    if not len(rows):
        raise BadInput(f"{path} has no row of the domain {name}: it has {', '.join(dataset.domains)}")
    split = _splits(path, len(dataset))[rows]
    subset = dataset.subset(rows).as_one_domain(name)
    return replace(subset, y=np.full(len(rows), -1), classes=(), split=split if (split >= 0).all() else None)


def _splits(path: Path, rows: int) -> np.ndarray:
    """Return (n,) indices into SPLITS, -1 for other split names, which unused rows may have."""
    column = find(formats.open_table(path).schema.names, SYNONYMS["split"])
    if column is None:
        return np.full(rows, -1)
    names = (row[column] for row in formats.iter_rows(path, [column]))
    return np.asarray([SPLIT_NAMES.get(str(name).strip().lower(), -1) for name in names], dtype=np.int64)


def _draw(ubuntu: Dataset) -> np.ndarray:
    """Return (n,) rows in file order: at most the published number per split, or in total without splits."""
    limits = DRAWN if ubuntu.split is not None else {"all": sum(DRAWN.values())}
    chosen = []
    for kind, size in limits.items():
        rows = np.arange(len(ubuntu)) if kind == "all" else np.flatnonzero(ubuntu.split_codes == SPLITS.index(kind))
        order = torch.randperm(len(rows), generator=generator(0, "dialogue", kind)).numpy()
        chosen.append(rows[order[:size]])
    return np.sort(np.concatenate(chosen))
