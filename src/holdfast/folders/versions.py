"""Versions of a model folder: the first is the folder itself, later ones are in versions/N.

versions/ledger.json names the current version; it is written atomically when the files of a version are complete.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
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
# files that not every model has
OPTIONAL = ("gauge.safetensors", "sample.safetensors", "leftout.safetensors", "reference.safetensors", "members")


@dataclass(frozen=True)
class Version:
    """One state of a model; the fields are keys of the ledger and of the JSON output."""

    number: int
    made: str  # date and time, UTC
    method: str
    learned: tuple[str, ...]  # domains added by this version
    parent: int | None
    metric: str
    scores: dict[str, float | None]  # per domain
    forced: bool = False
    files: dict[str, str] = field(default_factory=dict)  # sha256 per file
    request: str = ""  # hash of the data and options that it was created with, and of the version before


@dataclass(frozen=True)
class Ledger:
    """All versions of a model folder and the number of the current one."""

    current: int
    versions: tuple[Version, ...]

    def version(self, number: int) -> Version:
        known = {version.number: version for version in self.versions}
        if number not in known:
            raise BadInput(f"no version {number} of this model: choose one of {', '.join(map(str, known))}")
        return known[number]


def version_folder(folder: Path, number: int) -> Path:
    return folder if number == 1 else folder / FOLDER / str(number)


def current_folder(folder: Path) -> Path:
    return version_folder(folder, _read(folder / FOLDER / LEDGER).current) if has_versions(folder) else folder


def has_versions(folder: Path) -> bool:
    return (folder / FOLDER / LEDGER).is_file()


def read_ledger(folder: Path, first: Version) -> Ledger:
    """Read the ledger, or create one with the `first` version only."""
    if has_versions(folder):
        return _read(folder / FOLDER / LEDGER)
    modified = datetime.fromtimestamp((folder / "config.json").stat().st_mtime, UTC)
    return Ledger(1, (replace(first, number=1, made=_date(modified), files=_digests(folder)),))


def add_version(folder: Path, ledger: Ledger, about: Version, write: Callable[[Path], Any]) -> Version:
    """Let `write` fill a new folder, move it into place atomically, and make it the current version."""
    home = folder / FOLDER
    number = max([version.number for version in ledger.versions] + _unlisted(home)) + 1
    draft = home / f".{number}.{os.getpid()}.draft"
    try:
        home.mkdir(exist_ok=True)
        for stale in (*home.glob(".*.draft"), home / str(number)):  # left by a killed process
            if stale.is_dir():
                shutil.rmtree(stale)
        if not has_versions(folder) and not _unlisted(home):
            _write(folder, ledger)  # then a folder that a killed process leaves is not mistaken for a version
        write(draft)
        created = _date(datetime.now(UTC))
        version = replace(about, number=number, parent=ledger.current, made=created, files=_digests(draft))
        os.replace(draft, home / str(number))
    except OSError as error:
        raise write_error(home / str(number), error) from error
    _write(folder, Ledger(number, (*ledger.versions, version)))
    return version


def request_digest(ledger: Ledger, base: int, inputs: Sequence[Any]) -> str:
    """Hash the JSON inputs of a command that creates a version from the version `base`."""
    weights = ledger.version(base).files.get("model.safetensors", "")
    return hashlib.sha256(json.dumps([base, weights, *inputs], sort_keys=True, default=str).encode()).hexdigest()


def repeated_version(ledger: Ledger, inputs: Sequence[Any]) -> Version | None:
    """Return the current version if a command with these inputs created it, for example before it was killed."""
    version = ledger.version(ledger.current)
    if not version.request or version.parent is None:
        return None
    return version if version.request == request_digest(ledger, version.parent, inputs) else None


def repeated_note(version: Version) -> str:
    return f"this command has created version {version.number} already, so nothing was changed"


def _unlisted(home: Path) -> list[int]:
    """Return versions without a ledger, which a user may have deleted because it was broken."""
    if not home.is_dir() or (home / LEDGER).is_file():
        return []
    return [int(path.name) for path in home.iterdir() if path.name.isdecimal()]


def use_version(folder: Path, ledger: Ledger, number: int) -> Version:
    """Make this the current version after verifying the hashes of its files."""
    version = ledger.version(number)
    now = _digests(version_folder(folder, number))
    for name, digest in version.files.items():
        if now.get(name) != digest:
            state = "was changed" if name in now else "is missing"
            fix = "restore the file from a backup or choose another version"
            raise BadInput(f"version {number} of {folder} cannot be restored because its file {name} {state}: {fix}")
    _write(folder, Ledger(number, ledger.versions))
    return version


def _digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every model file, without other versions and checkpoints."""
    digests = {}
    for name in (*OWN, *OPTIONAL):
        path = folder / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                digests[str(file.relative_to(folder))] = file_digest(file)
    return digests


def _write(folder: Path, ledger: Ledger) -> None:
    versions = [asdict(version) for version in ledger.versions]
    document = {"format": FORMAT, "current": ledger.current, "versions": versions}
    write_text(folder / FOLDER / LEDGER, json.dumps(document, indent=1) + "\n")


def _read(path: Path) -> Ledger:
    try:
        document = read_json(path)
        if document["format"] != FORMAT:
            raise BadInput(f"{path} has format {document['format']}, this version reads {FORMAT}: update holdfast")
        ledger = Ledger(document["current"], tuple(_version(fields) for fields in document["versions"]))
        ledger.version(ledger.current)
        return ledger
    except (Damaged, KeyError, TypeError) as error:
        raise BadInput(f"{path} is corrupted ({error}): delete it to use the first version") from error


def _version(fields: dict[str, Any]) -> Version:
    """Parse one version; raise TypeError if a field has the wrong type."""
    version = Version(**{**fields, "learned": tuple(fields["learned"])})
    for name, kind in {
        "number": int,
        "made": str,
        "method": str,
        "metric": str,
        "scores": dict,
        "files": dict,
        "request": str,
    }.items():
        if not isinstance(getattr(version, name), kind):
            raise TypeError(f"{name} of a version is not a {kind.__name__}")
    if not all(isinstance(name, str) for name in version.learned):
        raise TypeError("a learned domain is not a string")
    if not all(value is None or math.isfinite(value) for value in version.scores.values()):
        raise TypeError("a score is not a number")
    return version


def _date(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")
