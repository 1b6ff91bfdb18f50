"""History of a monitored model: one JSON line per checked batch, without any example.

The file watch.jsonl is in the model folder or in a folder of the user. Two processes may write at the same time: each
reads, changes and replaces the file under a lock.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from holdfast.core.errors import BadInput
from holdfast.core.files import check_regular, write_error, write_text

FILE = "watch.jsonl"
LOCK = ".watch.lock"
MAX_ENTRIES = 10_000  # of the history; the oldest are dropped
MAX_BYTES = 1 << 26
WAIT = 60.0  # seconds for another process
KEY = ("model", "data", "batch", "domain")  # an entry with equal values is replaced
SUMMARIES = 20  # of the latest batches of a domain
KEPT_FIELDS = (
    "batch", "domain", "rows", "discrepancy", "foreign", "predicted", "labelled", "drifted", "since", "accuracy",
    "true",
)  # fmt: skip

Entry = dict[str, Any]


def read_history(folder: Path, model: str | None = None) -> list[Entry]:
    """Return the entries of a folder, oldest first; with `model`, those of this version of the model only."""
    path = folder / FILE
    if not path.is_file():
        return []
    check_regular(path, max_bytes=MAX_BYTES)
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
            valid = isinstance(entry, dict) and all(key in entry for key in (*KEY, *KEPT_FIELDS))
        except ValueError:
            valid, entry = False, {}
        if not valid:
            raise BadInput(f"{path}: line {number} is not an entry of `holdfast watch`: delete the file to start again")
        entries.append(entry)
    return [entry for entry in entries if model is None or entry["model"] == model]


def add_entries(folder: Path, entries: Sequence[Entry]) -> list[Entry]:
    """Add entries to the history and return all; an entry of the same batch of the same data is replaced."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=WAIT)
        with lock:
            history = read_history(folder)
            new = {_key(entry): entry for entry in entries}
            merged = [new.pop(_key(entry), entry) for entry in history]
            merged = _without_old_summaries([*merged, *new.values()][-MAX_ENTRIES:])
            lines = (json.dumps(entry, sort_keys=True, allow_nan=False) for entry in merged)
            write_text(folder / FILE, "".join(f"{line}\n" for line in lines))
    except Timeout:
        fix = "wait until it ends, or use another folder with --state"
        raise BadInput(f"{folder / FILE} is in use by another process for {WAIT:g} seconds: {fix}") from None
    except OSError as error:
        raise write_error(folder / FILE, error) from error
    return merged


def _without_old_summaries(entries: Sequence[Entry]) -> list[Entry]:
    """Drop the summaries of all but the latest batches of each domain, which later tests use."""
    counts: Counter[tuple[Any, ...]] = Counter()
    shortened = []
    for entry in reversed(entries):
        counts[entry["model"], entry["domain"]] += 1
        old = counts[entry["model"], entry["domain"]] > SUMMARIES
        shortened.append({k: v for k, v in entry.items() if k != "summary"} if old else entry)
    return shortened[::-1]


def entry_of(check: dict[str, Any], summary: Mapping[str, Any] | None, *, model: str, data: str) -> Entry:
    """Return the entry of a checked batch; rows and examples are not stored."""
    written = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d %H:%M:%S")
    fields = {name: check[name] for name in KEPT_FIELDS}
    return {
        "time": written,
        "model": model,
        "data": data,
        **fields,
        **({} if summary is None else {"summary": summary}),
    }


def _key(entry: Entry) -> tuple[Any, ...]:
    return tuple(entry[name] for name in KEY)


def first_drifted(history: Sequence[Entry], domain: str | None) -> str:
    """Return the first batch of the drift that the latest entries of a domain show without a break; empty if none."""
    since = ""
    for entry in history:
        if entry["domain"] == domain:
            since = (since or str(entry["batch"])) if entry["drifted"] else ""
    return since
