"""Table files row by row, for columns that hold lists, and a data set of what was gathered from them.

n examples
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from holdfast.core.errors import BadInput
from holdfast.data import formats
from holdfast.data.columns import Finder
from holdfast.data.domain import Dataset
from holdfast.data.names import Names, domain_codes, split_codes
from holdfast.data.raw import Raw

ABOUT = ("domain", "split", "id")


def finder(path: Path, columns: Mapping[str, str] | None) -> Finder:
    """The columns of a table, to be found by role."""
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty: give it one row an example")
    return Finder(str(path), formats.peek(path).names, columns)


def each_row(path: Path, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """The named columns of every row, lists as lists."""
    match path.suffix.lower():
        case ".parquet":
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=list(names)):
                    yield from batch.to_pylist()
        case ".csv" | ".tsv":
            for batch in formats.stream(path, dict.fromkeys(names, pa.large_string()), formats.LONG_BLOCK):
                yield from batch.to_pylist()
        case _:
            yield from _objects(path, names)


def _objects(path: Path, names: Collection[str]) -> Iterator[dict[str, Any]]:
    row = 0
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            if not line.strip():
                continue
            row += 1
            try:
                found = json.loads(line)
            except ValueError as error:
                raise BadInput(f"{path}: row {row} is not JSON: {error}") from error
            if not isinstance(found, dict):
                raise BadInput(f"{path}: row {row} is not a JSON object: write one {{...}} a line")
            check_characters(line, found, f"{path}: row {row}")
            yield {name: found.get(name) for name in names}


def check_characters(written: str, found: Any, where: str) -> None:
    """JSON can spell one half of a pair of surrogates, which no encoding can hold."""
    if "\\ud" not in written.lower():
        return
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{where} has half of a character, as \\ud83d alone: write the whole of it") from error


def gathered(
    path: Path,
    raw: Raw,
    about: Mapping[str, Sequence[Any]],
    *,
    classes: tuple[str, ...] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """A data set without labels; `about` has domain, split and id of each example where they are known."""
    domain, domains = np.zeros(len(raw), dtype=np.int64), ("all",)
    if "domain" in about:
        names = _names(about["domain"], numbers=False)
        domain, domains = domain_codes(names, None)
        if (domain < 0).any():
            raise BadInput(f"{path}: row {int((domain < 0).argmax()) + 1} has no domain: fill it in or take it out")
    split = None
    if "split" in about:
        split = split_codes(_names(about["split"], numbers=True), where=str(path), column="split")
    return Dataset(
        name=path.stem,
        raw=raw,
        y=np.full(len(raw), -1),
        classes=classes,
        domain=domain,
        domains=domains,
        split=split,
        ids=[str(each) for each in about["id"]] if "id" in about else None,
        notes=tuple(notes),
    )


def _names(values: Sequence[Any], *, numbers: bool) -> Names:
    found = Names()
    found.add(pa.array([None if value is None else str(value) for value in values], type=pa.string()), numbers=numbers)
    return found
