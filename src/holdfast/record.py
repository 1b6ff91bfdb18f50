"""Run records: one JSON file per run, written atomically and read by every report. Does not import torch."""

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
from holdfast.core.files import MAX_JSON, check_regular, write_text

SCHEMA = 1
PACKED = ".jsonl.gz"  # one record per line
REQUIRED = (("spec", "method"), ("spec", "metric"), ("spec", "encoder"), ("code", "version"), ("machine", "torch"))
OPTIONAL = {  # type -> settings of a spec that reports read
    str: ("data", "neck", "plan", "select", "task", "tune"),
    int: ("seed", "steps"),
    dict: (
        "method_args",
        "encoder_args",
        "neck_args",
        "head_args",
        "plan_args",
        "task_args",
        "predict_args",
        "lr_args",
    ),
}

LOWER_IS_BETTER = ("nll", "ece", "loss", "perplexity", "rmse", "mae", "pinball", "interval_width", "rps")
# metric of complete generated answers, which only tests compute -> metric of the validation
VALIDATED_BY: dict[str, str] = dict.fromkeys(("bleu2", "w2v_similarity", "distinct2"), "nll")
Scores = dict[str, float | None]  # metric -> value; None if it is undefined, such as AUC with one class


def run_id(spec: dict[str, Any], episode: str) -> str:
    """Return the id of a run, a hash of its spec and episode."""
    text = json.dumps([spec, episode], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def packed(correct: Iterable[bool]) -> str:
    """Encode which examples were predicted correctly as a hexadecimal number; a leading 1 preserves leading zeros."""
    return f"{int('1' + ''.join('01'[each] for each in correct), 2):x}"


def unpacked(text: str) -> list[bool]:
    """Decode the result of `packed`."""
    return [digit == "1" for digit in f"{int(text, 16):b}"[1:]]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One episode of one spec, with its scores and its cost.

    A stage is {"train": [domain], "step": selected step, "valid": {domain: Scores}, "test": {domain: Scores},
    "history": [{"step", metrics of the step, "valid": {domain: value}}], "sizes": {"train", "valid", "test"},
    "right": {domain: `packed` correctness of the test examples}}; "right" is absent if predictions are not simply right
    or wrong. For numeric targets, "predictions": {domain: {"observed", "predicted", "low", "high"}} has some of the
    predicted numbers and the ends of their intervals. "sets": {domain: {nominal coverage: {method: {"examples",
    "coverage", "size"}}}} has the coverage of prediction sets on a left-out domain. The first stage of a network that
    was trained earlier also has "before": {domain: Scores}.
    `analysis` maps the name of an analysis to its result; None if it does not apply to the run. `engagement` maps a
    mechanism of the network, such as `memory`, to {"share" of validation predictions that change if it is replaced by
    its null, number of "predictions", name of the "null", "statistics": {name: mean}}; empty for a plain network.
    """

    spec: dict[str, Any]
    episode: str
    stages: list[dict[str, Any]]
    code: dict[str, str]  # version, commit
    machine: dict[str, Any]  # python, torch, device, cpu, threads
    cost: dict[str, float]  # seconds, examples_per_second, peak_memory_mb, parameters, learning_parameters, macs
    schema: int = SCHEMA
    analysis: dict[str, Any] = field(default_factory=dict)
    engagement: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Hash of the spec and the episode, which is also the name of the file."""
        return run_id(self.spec, self.episode)

    @property
    def validated(self) -> str:
        """Metric of the history; `nll` if the metric needs complete generated answers."""
        metric = str(self.spec.get("metric", "score"))
        return VALIDATED_BY.get(metric, metric)

    def validations(self, check: dict[str, Any]) -> Scores:
        """Return the scores of a history entry per domain; the history stores negated values if lower is better."""
        sign = -1 if self.validated in LOWER_IS_BETTER else 1
        return {name: None if value is None else sign * value for name, value in check.get("valid", {}).items()}

    def text(self) -> str:
        """Return the content of the file, with a checksum that reveals later changes."""
        fields = asdict(self)
        analysis = fields.pop("analysis")
        if not self.engagement:
            del fields["engagement"]
        fields["checksum"] = _checksum({**fields, "analysis": analysis})
        text = json.dumps(fields, sort_keys=True, indent=1, allow_nan=False) + "\n"
        if not analysis:
            return text
        # long lists of numbers stay on one line; "analysis" is the first of the sorted keys
        return f'{{\n "analysis": {json.dumps(analysis, sort_keys=True, allow_nan=False)},{text[1:]}'

    def save(self, folder: Path) -> Path:
        """Write the record to a folder; return the file."""
        return write_text(folder / f"{self.id}.json", self.text())


def _checksum(fields: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(fields, allow_nan=False))  # as it will be read: keys are strings
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def read(path: Path) -> RunRecord:
    """Read one record; raise `Damaged` for a file that is not a record or was changed after it was written."""
    try:
        check_regular(path, max_bytes=MAX_JSON)
        text = path.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"{path} is not a run record ({error}): delete it or name another folder") from error
    return _parse(text, str(path))


def _parse(text: str, path: str) -> RunRecord:
    try:
        fields = json.loads(text)
        if fields["schema"] != SCHEMA:
            raise BadInput(f"{path} has record schema {fields['schema']}, this version reads {SCHEMA}: update holdfast")
        written, analysis = fields.pop("checksum", None), fields.get("analysis", {})
        computed = _checksum({**fields, "analysis": analysis})  # raises for NaN and infinity
        if written is not None and written != computed:
            raise Damaged(f"{path} has changed since it was written (its checksum differs): delete it and run it again")
        record = RunRecord(**fields)
        _check(record)
        return record
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        if isinstance(error, BadInput):
            raise
        reason = " ".join(str(error).split())[:200]
        raise Damaged(f"{path} is not a run record ({reason}): delete it or name another folder") from error


def _check(record: RunRecord) -> None:
    """Raise TypeError or KeyError unless the record has everything that reports need."""
    kinds = {"episode": str, "stages": list} | dict.fromkeys(
        ("spec", "code", "machine", "cost", "analysis", "engagement"), dict
    )
    for name, kind in kinds.items():
        if not isinstance(getattr(record, name), kind):
            raise TypeError(f"{name} is not a {kind.__name__}")
    for part, name in REQUIRED:
        if not isinstance(getattr(record, part)[name], str):
            raise TypeError(f"{part}.{name} is not a string")
    for kind, names in OPTIONAL.items():
        values = {name: record.spec[name] for name in names if record.spec.get(name) is not None}
        if wrong := [name for name, value in values.items() if not isinstance(value, kind)]:
            raise TypeError(f"spec.{wrong[0]} is not a {kind.__name__}")
    if not record.stages:
        raise TypeError("stages is empty")
    if not all(value is None or isinstance(value, int | float) for value in record.cost.values()):
        raise TypeError("a cost is not a number")
    if not all(isinstance(measured["share"], int | float) for measured in record.engagement.values()):
        raise TypeError("the share of a mechanism is not a number")
    for stage in record.stages:
        if not all(isinstance(name, str) for name in stage["train"]) or not isinstance(stage["step"], int):
            raise TypeError("a stage lacks the names of its training domains or the selected step")
        for scores in (*stage["valid"].values(), *stage["test"].values(), *stage.get("before", {}).values()):
            if not all(value is None or isinstance(value, int | float) for value in scores.values()):
                raise TypeError("a score is not a number")
        if not all(isinstance(check["step"], int) for check in stage.get("history", [])):
            raise TypeError("a step of the history is not a number")


def read_finished(path: Path) -> RunRecord | None:
    """Read the record of a finished run, or return None; a damaged file is moved aside with a warning."""
    try:
        return read(path) if path.exists() else None
    except Damaged as error:
        moved = path.with_name(f"{path.name}.damaged")
        os.replace(path, moved)
        warn(f"{error}; it is set aside as {moved.name}, and the run is repeated")
        return None


def load(source: Path) -> Iterator[RunRecord]:
    """Yield the records of a folder, of its `records` folder, or of a packed file, sorted by id."""
    if source.name.endswith(PACKED):
        yield from unpack(source)
    else:
        yield from map(read, paths(source))


def pack(folder: Path, packed: Path) -> int:
    """Write all records of a folder to one gzipped JSON-lines file, sorted by id; return their number."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in paths(folder)]
    lines = [json.dumps(record, sort_keys=True, separators=(",", ":")) for record in records]
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
    """Return the record files of a folder, or of its `records` folder, sorted by name."""
    inner = folder / "records"
    return sorted((inner if inner.is_dir() else folder).glob("*.json"))
