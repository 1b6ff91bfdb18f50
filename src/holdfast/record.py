"""What a run leaves behind: one JSON file, written whole, read by every report; needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.core.files import write_text

SCHEMA = 1

Scores = dict[str, float | None]  # metric -> value; None where it is not defined, such as AUC of one class


def run_id(spec: dict[str, Any], episode: str) -> str:
    """Same spec and episode, same id: a second run overwrites, it never duplicates."""
    text = json.dumps([spec, episode], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def packed(right: Iterable[bool]) -> str:
    """Which examples were right, four to a letter; a one before them all keeps the wrong ones at the front."""
    return f"{int('1' + ''.join('01'[each] for each in right), 2):x}"


def unpacked(text: str) -> list[bool]:
    return [each == "1" for each in f"{int(text, 16):b}"[1:]]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One episode of one spec, from what decided it to what it scored and cost.

    A stage is {"train": [domain], "step": kept step, "valid": {domain: Scores}, "test": {domain: Scores},
    "history": [{"step", metrics of the step, "valid": {domain: value}}], "sizes": {"train", "valid", "test"},
    "right": {domain: `packed` test examples in order}}, the last where a task judges example by example.
    An analysis is what was asked of the trained run afterwards, by name; None where it does not apply to it.
    """

    spec: dict[str, Any]
    episode: str
    stages: list[dict[str, Any]]
    code: dict[str, str]  # version, commit
    machine: dict[str, Any]  # python, torch, device, cpu, threads
    cost: dict[str, float]  # seconds, examples_per_second, peak_memory_mb, parameters, learning_parameters
    schema: int = SCHEMA
    analysis: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return run_id(self.spec, self.episode)

    def text(self) -> str:
        fields = asdict(self)
        analysis = fields.pop("analysis")
        told = json.dumps(fields, sort_keys=True, indent=1, allow_nan=False) + "\n"
        if not analysis:
            return told
        # long rows of numbers stay on one line; the name comes first, as sorted keys have it
        return f'{{\n "analysis": {json.dumps(analysis, sort_keys=True, allow_nan=False)},{told[1:]}'

    def save(self, folder: Path) -> Path:
        return write_text(folder / f"{self.id}.json", self.text())


def read(path: Path) -> RunRecord:
    """One record; a file that is none gets a clear sentence."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["schema"] != SCHEMA:
            raise BadInput(f"{path} has record schema {fields['schema']}, this version reads {SCHEMA}")
        return RunRecord(**fields)
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a run record ({error}): delete it or name another folder") from error


def load(folder: Path) -> Iterator[RunRecord]:
    """All records of a folder, or of its `records` folder, in the order of their names."""
    inner = folder / "records"
    for path in sorted((inner if inner.is_dir() else folder).glob("*.json")):
        yield read(path)
