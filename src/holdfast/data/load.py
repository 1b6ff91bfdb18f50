"""One door to all data: a known name, a folder of images or graphs, a table or arrays, with settings after an @."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import BadInput, unknown
from holdfast.data.dataset import Dataset
from holdfast.data.known.graph_sets import shifted
from holdfast.data.readers import formats
from holdfast.data.readers.arrays import read_arrays
from holdfast.data.readers.corpus import read_corpus
from holdfast.data.readers.graphs import SUFFIXES as GRAPHS
from holdfast.data.readers.graphs import holds_graphs, read_graphs
from holdfast.data.readers.images import read_images
from holdfast.data.readers.molecules import read_molecules, smiles_column
from holdfast.data.readers.questions import read_questions
from holdfast.data.readers.table import read_table, table_pieces
from holdfast.data.readers.tags import read_tags

SHIFT = ("shift", "environments", "group")
FORMS: dict[str, Callable[..., Dataset]] = {"tags": read_tags, "questions": read_questions, "corpus": read_corpus}


def read(
    data: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    need: Collection[str] = ("label", "domain"),
    data_dir: Path | None = None,
    known: Mapping[str, Callable[..., Dataset]],
    form: str = "table",
) -> Dataset:
    """The data set of this name in `known`, else the file or folder of this path, read in the form that a task takes.

    `NAME@KEY=VALUE,KEY=VALUE` sets what the set has to set; `shift=size` cuts any graphs by that shift.
    """
    data, text = _asked(data, known)
    given = _settings(text)
    if "shift" in given:  # which makes the domains
        need = [each for each in need if each != "domain"]
    make = _reader(data, columns=columns, need=need, data_dir=data_dir, known=known, form=form)
    free = _free(make)
    for key in given:
        if key not in (*free, *SHIFT):
            raise unknown(f"setting of {data}", key, [*free, *SHIFT])
    if given and "shift" not in given and set(given) & set(SHIFT):
        raise BadInput(f"'{data}@{text}' says how to group a shift, but names none: add shift=size, degree or scaffold")
    made = make(**{key: value for key, value in given.items() if key in free})
    if "shift" in given:
        chosen = {key: value for key, value in given.items() if key in SHIFT and key != "shift"}
        made = shifted(made, str(given["shift"]), **chosen)
    return replace(made, name=f"{made.name}@{text}") if text else made


def pieces(
    data: str | Path,
    *,
    rows: int,
    columns: Mapping[str, str] | None = None,
    known: Mapping[str, Callable[..., Dataset]],
    form: str = "table",
) -> Iterator[Dataset]:
    """Examples without a need for labels or domains, so many rows at a time; a table is never in memory as a whole."""
    name, text = _asked(data, known)
    make = _reader(name, columns=columns, need=(), data_dir=None, known=known, form=form)
    if isinstance(make, partial) and make.func is read_table and not text:
        yield from table_pieces(*make.args, **make.keywords, rows=rows)
    else:
        yield from cut(read(data, columns=columns, need=(), known=known, form=form), rows)


def cut(dataset: Dataset, rows: int) -> Iterator[Dataset]:
    """A data set in pieces of so many rows."""
    for start in range(0, len(dataset), rows):
        yield dataset.subset(np.arange(start, min(start + rows, len(dataset))))


def _reader(
    data: str | Path,
    *,
    columns: Mapping[str, str] | None,
    need: Collection[str],
    data_dir: Path | None,
    known: Mapping[str, Callable[..., Dataset]],
    form: str,
) -> Callable[..., Dataset]:
    if isinstance(data, str) and data in known:
        return partial(known[data], data_dir=data_dir)
    path = Path(data).expanduser()
    if data == "":  # which as a path is the folder one is in
        raise BadInput("the data has an empty name: name a file, a folder or a known data set")
    if not path.exists():
        raise _not_found(str(data), known)
    if form in FORMS:
        return partial(FORMS[form], path, columns=columns, need=need)
    if (path.is_dir() or path.suffix.lower() in GRAPHS) and holds_graphs(path):
        if columns:
            raise BadInput(f"{path} holds graphs, which have no columns: leave --column out")
        return partial(read_graphs, path)
    if path.is_dir():
        if columns:
            raise BadInput(f"{path} is a folder of images, which has no columns: leave --column out")
        return partial(read_images, path, need=need)
    if path.suffix.lower() == ".npz":
        return partial(read_arrays, path, columns=columns, need=need)
    smiles = smiles_column(path, columns)
    if smiles is not None:
        return partial(read_molecules, path, smiles, columns=columns, need=need)
    if path.suffix.lower() in formats.SUFFIXES:
        return partial(read_table, path, columns=columns, need=need)
    raise BadInput(
        f"{path} has the suffix '{path.suffix}', which is not known: use one of "
        f"{', '.join((*formats.SUFFIXES, '.npz', *GRAPHS))}, or a folder of images or graphs"
    )


def _asked(data: str | Path, known: Collection[str]) -> tuple[str | Path, str]:
    """The data and the settings after its last @; a file whose name has one is that file."""
    if not isinstance(data, str) or "@" not in data or data in known or Path(data).expanduser().exists():
        return data, ""
    name, _, text = data.rpartition("@")
    return name, text


def _settings(text: str) -> dict[str, Any]:
    """`shift=size,environments=3` to a dict; values are JSON where they can be."""
    found: dict[str, Any] = {}
    for pair in text.split(",") if text else ():
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise BadInput(f"after an @ stand settings KEY=VALUE, such as nci1@shift=size, not '{pair}'")
        try:
            found[key.strip()] = json.loads(value)
        except json.JSONDecodeError:
            found[key.strip()] = value.strip()
    return found


def _free(make: Callable[..., Dataset]) -> list[str]:
    """What a reader can be told beyond what it was told already."""
    taken = make.keywords if isinstance(make, partial) else {}
    parameters = inspect.signature(make).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.name not in taken]


def _not_found(data: str, known: Collection[str]) -> BadInput:
    near = difflib.get_close_matches(data, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "check the path;"
    return BadInput(
        f"'{data}' is neither a file, nor a folder, nor a known data set: {hint} `holdfast list datasets` shows those"
    )
