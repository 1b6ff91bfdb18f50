"""What a run leaves behind: one JSON file, written whole, read by every report; needs no torch."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput, Damaged, warn
from holdfast.core.files import write_text

SCHEMA = 1
PACKED = ".jsonl.gz"  # one record per line
NAMED = (("spec", "method"), ("spec", "metric"), ("spec", "encoder"), ("code", "version"), ("machine", "torch"))
SPOKEN = {  # what reports say of a spec
    str: ("data", "neck", "plan", "select", "task", "tune"),
    int: ("seed", "steps"),
    dict: ("method_args", "encoder_args", "neck_args", "head_args", "plan_args", "task_args"),
}

LOWER_IS_BETTER = ("nll", "ece", "loss", "perplexity")
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
    "right": {domain: `packed` test examples in order}}, the last where a task judges example by example. The first
    stage of a network that was trained before has its scores of then too, "before": {domain: Scores}.
    An analysis is what was asked of the trained run afterwards, by name; None where it does not apply to it.
    """

    spec: dict[str, Any]
    episode: str
    stages: list[dict[str, Any]]
    code: dict[str, str]  # version, commit
    machine: dict[str, Any]  # python, torch, device, cpu, threads
    cost: dict[str, float]  # seconds, examples_per_second, peak_memory_mb, parameters, learning_parameters, macs
    schema: int = SCHEMA
    analysis: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return run_id(self.spec, self.episode)

    @property
    def validated(self) -> str:
        """The metric that its history has; of answers the risk, where the metric needs whole answers."""
        metric = str(self.spec.get("metric", "score"))
        return "nll" if self.spec.get("task") == "respond" and metric not in LOWER_IS_BETTER else metric

    def validations(self, check: dict[str, Any]) -> Scores:
        """What an entry of the history scored by domain, as it is: there higher is better whatever the metric."""
        sign = -1 if self.validated in LOWER_IS_BETTER else 1
        return {name: None if value is None else sign * value for name, value in check.get("valid", {}).items()}

    def text(self) -> str:
        """The file, with a checksum of all that it says, so that a change of it is noticed."""
        fields = asdict(self)
        analysis = fields.pop("analysis")
        fields["checksum"] = _checksum({**fields, "analysis": analysis})
        told = json.dumps(fields, sort_keys=True, indent=1, allow_nan=False) + "\n"
        if not analysis:
            return told
        # long rows of numbers stay on one line; the name comes first, as sorted keys have it
        return f'{{\n "analysis": {json.dumps(analysis, sort_keys=True, allow_nan=False)},{told[1:]}'

    def save(self, folder: Path) -> Path:
        return write_text(folder / f"{self.id}.json", self.text())


def _checksum(fields: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(fields, allow_nan=False))  # as it is read again: keys are texts
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def read(path: Path) -> RunRecord:
    """Read one record; raise `Damaged` for a file that is not a record or was changed after it was written."""
    try:
        text = path.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        raise Damaged(f"{path} is not a run record ({error}): delete it or name another folder") from error
    return _parse(text, str(path))


def _parse(text: str, path: str) -> RunRecord:
    try:
        fields = json.loads(text)
        if fields["schema"] != SCHEMA:
            raise BadInput(f"{path} has record schema {fields['schema']}, this version reads {SCHEMA}")
        written, analysis = fields.pop("checksum", None), fields.get("analysis", {})
        found = _checksum({**fields, "analysis": analysis})  # which refuses numbers that JSON has not
        if written is not None and written != found:
            raise Damaged(f"{path} has changed since it was written, by its checksum: delete it and run it again")
        record = RunRecord(**fields)
        _check(record)
        return record
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        if isinstance(error, BadInput):
            raise
        told = " ".join(str(error).split())[:200]
        raise Damaged(f"{path} is not a run record ({told}): delete it or name another folder") from error


def _check(record: RunRecord) -> None:
    """What every reader of records relies on; records of earlier versions lack some of it."""
    kinds = {"episode": str, "stages": list} | dict.fromkeys(("spec", "code", "machine", "cost", "analysis"), dict)
    for name, kind in kinds.items():
        if not isinstance(getattr(record, name), kind):
            raise TypeError(f"{name} is no {kind.__name__}")
    for part, name in NAMED:
        if not isinstance(getattr(record, part)[name], str):
            raise TypeError(f"the {part}'s {name} is no name")
    for kind, names in SPOKEN.items():
        given = {name: record.spec[name] for name in names if record.spec.get(name) is not None}
        if wrong := [name for name, value in given.items() if not isinstance(value, kind)]:
            raise TypeError(f"the spec's {wrong[0]} is no {kind.__name__}")
    if not record.stages:
        raise TypeError("it has no stages")
    if not all(value is None or isinstance(value, int | float) for value in record.cost.values()):
        raise TypeError("a cost is no number")
    for stage in record.stages:
        if not all(isinstance(name, str) for name in stage["train"]) or not isinstance(stage["step"], int):
            raise TypeError("a stage has names of domains to train on, and the number of a step")
        for scores in (*stage["valid"].values(), *stage["test"].values(), *stage.get("before", {}).values()):
            if not all(value is None or isinstance(value, int | float) for value in scores.values()):
                raise TypeError("a score is no number")
        if not all(isinstance(check["step"], int) for check in stage.get("history", [])):
            raise TypeError("a step in the history is no number")


def read_whole(path: Path) -> RunRecord | None:
    """The record of a run that is done, or None where it has to be done: a damaged file is set aside and told."""
    try:
        return read(path) if path.exists() else None
    except Damaged as error:
        aside = path.with_name(f"{path.name}.damaged")
        os.replace(path, aside)
        warn(f"{error}; it is set aside as {aside.name}, and the run is done again")
        return None


def load(source: Path) -> Iterator[RunRecord]:
    """Yield the records of a folder, of its `records` folder, or of a packed file, sorted by id."""
    if source.name.endswith(PACKED):
        yield from unpack(source)
    else:
        yield from map(read, paths(source))


def pack(folder: Path, packed: Path) -> int:
    """Write all records of a folder to one gzipped JSON-lines file, sorted by id; return their number."""
    lines = [
        json.dumps(json.loads(path.read_text(encoding="utf-8")), sort_keys=True, separators=(",", ":"))
        for path in paths(folder)
    ]
    packed.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    return len(lines)


def unpack(packed: Path) -> Iterator[RunRecord]:
    """Yield the records of a packed file; each checksum is verified."""
    try:
        with gzip.open(packed, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                yield _parse(line, f"{packed}, line {number},")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Damaged(f"{packed} is not a file of packed run records ({error}): restore it or name a folder") from error


def paths(folder: Path) -> list[Path]:
    """Where they lie."""
    inner = folder / "records"
    return sorted((inner if inner.is_dir() else folder).glob("*.json"))
