"""Versions of a model folder: the first is the folder itself, later ones lie in versions/N; a ledger says which counts.

The ledger, versions/ledger.json, is written whole, and only once a version is whole on the disk. Whenever a process is
killed, the folder is as it was before or as it should be after.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput, Damaged
from holdfast.core.files import file_digest, read_json, write_error, write_text

FOLDER = "versions"
LEDGER = "ledger.json"
FORMAT = 1
OWN = ("config.json", "model.safetensors", "preparation", "record.json", "README.md", "heldout.json")
MORE = ("gauge.safetensors", "sample.safetensors")  # files that not every model has


@dataclass(frozen=True)
class Version:
    """One state of a model: what it learned last, from which other state, and its scores on held-out examples."""

    number: int
    made: str  # date and time, UTC
    method: str
    learned: tuple[str, ...]  # the domains that this version added
    parent: int | None
    metric: str
    scores: dict[str, float | None]  # by domain
    forced: bool = False
    files: dict[str, str] = field(default_factory=dict)  # the sha256 of each, so that a change is noticed


@dataclass(frozen=True)
class Ledger:
    """All versions of a model folder, and the one that is used."""

    current: int
    versions: tuple[Version, ...]

    def version(self, number: int) -> Version:
        for each in self.versions:
            if each.number == number:
                return each
        known = ", ".join(str(each.number) for each in self.versions)
        raise BadInput(f"there is no version {number} of this model: it has {known}")


def place(folder: Path, number: int) -> Path:
    """Where a version lies."""
    return folder if number == 1 else folder / FOLDER / str(number)


def current_folder(folder: Path) -> Path:
    """Where the version lies that is used: the folder itself where there is only one."""
    path = folder / FOLDER / LEDGER
    return place(folder, _read(path).current) if path.is_file() else folder


def has_versions(folder: Path) -> bool:
    return (folder / FOLDER / LEDGER).is_file()


def read_ledger(folder: Path, first: Version) -> Ledger:
    """The ledger; where there is none yet, one of the `first` version alone."""
    path = folder / FOLDER / LEDGER
    if not path.is_file():
        made = datetime.fromtimestamp((folder / "config.json").stat().st_mtime, UTC)
        return Ledger(1, (replace(first, number=1, made=_date(made), files=_digests(folder)),))
    return _read(path)


def add_version(folder: Path, ledger: Ledger, about: Version, write: Callable[[Path], Any]) -> Version:
    """Let `write` fill a new folder, move it to its place in one step, and use it from then on."""
    home = folder / FOLDER
    number = max([each.number for each in ledger.versions] + _unlisted(home)) + 1
    draft = home / f".{number}.{os.getpid()}.draft"
    try:
        home.mkdir(exist_ok=True)
        for left in (*home.glob(".*.draft"), home / str(number)):  # what a killed process left
            if left.is_dir():
                shutil.rmtree(left)
        write(draft)
        made = replace(
            about, number=number, parent=ledger.current, made=_date(datetime.now(UTC)), files=_digests(draft)
        )
        os.replace(draft, home / str(number))
    except OSError as error:
        raise write_error(home / str(number), error) from error
    _write(folder, Ledger(number, (*ledger.versions, made)))
    return made


def _unlisted(home: Path) -> list[int]:
    """Versions that lie there without a ledger, which a user may have deleted since it was broken: none is lost."""
    if not home.is_dir() or (home / LEDGER).is_file():
        return []
    return [int(each.name) for each in home.iterdir() if each.name.isdecimal()]


def use_version(folder: Path, ledger: Ledger, number: int) -> Version:
    """Use this version from now on, if it is bit for bit what it was; no other version is touched."""
    version = ledger.version(number)
    now = _digests(place(folder, number))
    for name, digest in version.files.items():
        if now.get(name) != digest:
            told = "changed" if name in now else "gone"
            raise BadInput(
                f"version {number} of {folder} cannot be given back, since its file {name} is {told}: put the file "
                "back from a copy, or choose another version"
            )
    _write(folder, Ledger(number, ledger.versions))
    return version


def _digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file of a model, without those of other versions and of runs under way."""
    found = {}
    for name in (*OWN, *MORE):
        path = folder / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                found[str(file.relative_to(folder))] = file_digest(file)
    return found


def _write(folder: Path, ledger: Ledger) -> None:
    held = {"format": FORMAT, "current": ledger.current, "versions": [asdict(each) for each in ledger.versions]}
    write_text(folder / FOLDER / LEDGER, json.dumps(held, indent=1) + "\n")


def _read(path: Path) -> Ledger:
    try:
        found = read_json(path)
        if found["format"] != FORMAT:
            raise BadInput(f"{path} has format {found['format']}, this version of holdfast reads {FORMAT}")
        ledger = Ledger(found["current"], tuple(_version(each) for each in found["versions"]))
        ledger.version(ledger.current)
        return ledger
    except (Damaged, KeyError, TypeError) as error:
        raise BadInput(f"{path} is broken ({error}): delete it to use the model as it was fitted") from error


def _version(told: dict[str, Any]) -> Version:
    """One version as the ledger tells it; a TypeError where it is not of that form."""
    made = Version(**{**told, "learned": tuple(told["learned"])})
    for name, kind in {"number": int, "made": str, "method": str, "metric": str, "scores": dict, "files": dict}.items():
        if not isinstance(getattr(made, name), kind):
            raise TypeError(f"{name} of a version is no {kind.__name__}")
    if not all(isinstance(name, str) for name in made.learned):
        raise TypeError("a domain that was learned has no name")
    if not all(value is None or math.isfinite(value) for value in made.scores.values()):
        raise TypeError("a score is no number")
    return made


def _date(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")
