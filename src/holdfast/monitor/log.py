"""Bounded log of a server: outputs, projected features and statistics of the examples it predicted, never the inputs.

A log is a folder with log.json and two files of JSON lines, the newer and the older half. `holdfast watch` reads it.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import BadInput, check_at_least
from holdfast.core.files import read_json, write_error, write_text
from holdfast.data.dataset import Dataset
from holdfast.monitor.drift import MIN_ROWS
from holdfast.monitor.observe import Observed
from holdfast.uncertainty.reference import Reference

ABOUT, NEWER, OLDER = "log.json", "newer.jsonl", "older.jsonl"
KIND, FORMAT = "log of a holdfast server", 1
FIELDS = ("outputs", "answers", "foreign", "coordinates", "lengths", "unknown")  # columns of tables are raw inputs
MAX_ROWS = 20_000  # of a log


class ServedLog:
    """Writer of a log; the older half of its rows is dropped when the newer half is full."""

    def __init__(self, folder: Path, *, model: str, rows: int = MAX_ROWS) -> None:
        check_at_least(2 * MIN_ROWS, log_rows=rows)
        self.folder, self.half = folder, rows // 2
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = [path.name for path in folder.iterdir() if path.name not in (ABOUT, NEWER, OLDER)]
            if others and not is_log(folder):
                raise BadInput(f"{folder} contains other files ({sorted(others)[0]}): choose a new folder with --log")
            write_text(folder / ABOUT, json.dumps({"kind": KIND, "format": FORMAT, "model": model}) + "\n")
            self.count = _lines(folder / NEWER)
            self.file = (folder / NEWER).open("a", encoding="utf-8")
        except OSError as error:
            raise write_error(folder, error) from error

    def add(self, observed: Observed) -> None:
        """Append the observations of some examples."""
        self.file.write(encode_rows(observed))
        self.file.flush()
        self.count += len(observed)
        if self.count >= self.half:
            self.file.close()
            os.replace(self.folder / NEWER, self.folder / OLDER)
            self.file, self.count = (self.folder / NEWER).open("w", encoding="utf-8"), 0

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _lines(path: Path) -> int:
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)


def encode_rows(observed: Observed) -> str:
    """Return one JSON line per example."""
    columns = {name: getattr(observed, name) for name in FIELDS}
    if columns["answers"] is columns["outputs"]:
        columns["answers"] = None
    lists = {
        name: np.round(value.astype(np.float64), 5).tolist() for name, value in columns.items() if value is not None
    }
    rows = (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True))
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def is_log(data: str | Path | Dataset) -> bool:
    """Whether the data is the log of a server."""
    return not isinstance(data, Dataset) and (Path(data).expanduser() / ABOUT).is_file()


def read_log(folder: Path, reference: Reference, *, rows: int | None = None) -> Iterator[tuple[str, Observed]]:
    """Yield the batches of a log, oldest first: all rows, or `rows` rows each."""
    folder = folder.expanduser()
    about: Any = read_json(folder / ABOUT)
    if not isinstance(about, dict) or about.get("kind") != KIND or about.get("format") != FORMAT:
        raise BadInput(f"{folder / ABOUT} is not that of a log of this version: start the server with a new --log")
    if rows is not None:
        check_at_least(MIN_ROWS, rows=rows)
    entries = [entry for name in (OLDER, NEWER) for entry in _entries(folder / name)]
    if not entries:
        raise BadInput(f"the log {folder} is empty: send requests to the server first")
    observed = _observed(entries, folder, reference)
    step = len(observed) if rows is None else rows
    for start in range(0, len(observed), step):
        members = np.arange(start, min(start + step, len(observed)))
        yield f"{start + 1} to {members[-1] + 1}", observed.take(members)


def _entries(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; the last one may be incomplete while the server writes it."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise BadInput(f"{path}: line {number} is not JSON: delete the file") from None
    return entries


def _observed(entries: list[dict[str, Any]], folder: Path, reference: Reference) -> Observed:
    wrong = BadInput(f"the log {folder} was not written by this model: pass the log of its server, or delete the log")
    known = reference.coordinates
    expected = {"outputs": reference.outputs.shape[1:]} | ({} if known is None else {"coordinates": known.shape[1:]})
    try:
        names = [name for name in FIELDS if name in entries[0]]
        arrays = {name: np.asarray([entry[name] for entry in entries], dtype=np.float64) for name in names}
    except (KeyError, TypeError, ValueError):
        raise wrong from None
    shapes = {name: arrays[name].shape[1:] for name in ("outputs", "coordinates") if name in arrays}
    if shapes != expected or not all(np.isfinite(values).all() for values in arrays.values()):
        raise wrong
    return Observed(**{"answers": arrays["outputs"], **arrays})
