"""Run commands of Holdfast as a user does, in a process of their own, and measure them.

`followed` runs the commands that come after a comparison: audit, predict, watch and serve.
"""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.field_sets import TEXT_COLUMNS, FieldSet
from studies.field_sklearn import SMILES, read_table

HOLDFAST = (sys.executable, "-m", "holdfast")
COMMAND_SECONDS = 300.0  # hard limit of the commands after a comparison
READY_SECONDS = 120.0  # until the server listens
STOP_SECONDS = 30.0
SPIN = "while True: pass"
TIMED_OUT = -1  # exit code of a command that was stopped


@dataclass(frozen=True)
class Finished:
    """Exit code, wall time, CPU time of all processes, and output of a command."""

    code: int
    started: float  # seconds since the epoch
    seconds: float
    cpu: float
    out: str
    error: str  # last line of stderr, or the error of a JSON document


def run(words: Sequence[str], folder: Path, *, seconds: float) -> Finished:
    """Run a command with an empty cache of its own; stop it with all its processes after some seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    before, started, begin = _cpu_seconds(), time.time(), time.monotonic()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as errors:
        process = _start(words, folder, stdout=out, stderr=errors)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        finally:
            _kill(process)
    wall = time.monotonic() - begin
    text, notes = (_tail(folder / name) for name in ("stdout", "stderr"))
    return Finished(code, started, wall, _cpu_seconds() - before, text, "" if not code else _error(text, notes))


def _start(words: Sequence[str], folder: Path, **streams: Any) -> subprocess.Popen[Any]:
    environment = os.environ | {"HOLDFAST_CACHE": str(folder / "cache")}
    return subprocess.Popen([*HOLDFAST, *words], cwd=folder, env=environment, start_new_session=True, **streams)


def _kill(process: subprocess.Popen[Any]) -> None:
    """End all processes of a session that are left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _tail(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _error(text: str, notes: str) -> str:
    """Return the error of a failed command in one line."""
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(text)["error"])[:500]
    lines = [line.strip() for line in notes.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no message"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep a number of cores busy with other processes."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def followed(entry: FieldSet, path: Path, model: Path, work: Path) -> dict[str, dict[str, Any]]:
    """Run audit, predict, watch and serve; return exit code, seconds and error per command."""
    report = {}
    for name, words in (
        ("audit", ["audit", str(path), *entry.words, "--out", "audit.html"]),
        ("predict", ["predict", str(model), str(path), "--out", "predictions.csv"]),
        ("watch", ["watch", str(model), str(path), "--out", "watch.html", "--no-state"]),
    ):
        done = run(words, work / name, seconds=COMMAND_SECONDS)
        report[name] = {"code": done.code, "seconds": round(done.seconds, 1), "error": done.error}
    return report | {"serve": serve(model, example(entry, path), work / "serve")}


def serve(model: Path, body: Any, folder: Path) -> dict[str, Any]:
    """Start the server on this machine, predict one example, and stop the server."""
    folder.mkdir(parents=True, exist_ok=True)
    begin, answer, error = time.monotonic(), None, ""
    with (folder / "stdout").open("wb") as out:
        words = ["serve", str(model), "--host", "127.0.0.1", "--port", "0"]
        process = _start(words, folder, stdout=out, stderr=subprocess.STDOUT)
    try:
        address = _address(process, folder / "stdout")
        ready = time.monotonic() - begin
        content = json.dumps({"example": body}).encode()
        request = urllib.request.Request(f"{address}/predict", content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=READY_SECONDS) as response:
            answer = json.load(response)
        process.send_signal(signal.SIGINT)
        code = process.wait(STOP_SECONDS)
    except (OSError, ValueError, subprocess.TimeoutExpired) as failure:
        detail = failure.read().decode(errors="replace") if hasattr(failure, "read") else ""  # type: ignore[attr-defined]
        code, ready, error = TIMED_OUT, time.monotonic() - begin, f"{failure} {detail}".strip()[:500]
    finally:
        _kill(process)
    if answer is None and not error:
        error = "the server did not answer"
    return {"code": code, "seconds": round(ready, 1), "error": error}


def _address(process: subprocess.Popen[Any], log: Path) -> str:
    """Wait until the server prints its address."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if match := re.search(r"http://127\.0\.0\.1:\d+", _tail(log)):
            return match[0]
        if process.poll() is not None:
            raise ValueError(f"the server ended: {_error('', _tail(log))}")
        time.sleep(0.1)
    raise ValueError(f"the server did not start within {READY_SECONDS:.0f} seconds")


def example(entry: FieldSet, path: Path) -> Any:
    """Return the first example of a set in the form of a request to the server."""
    if entry.kind == "image":
        return base64.b64encode(min(path.glob("*/*/*")).read_bytes()).decode()
    if path.is_dir():
        _, first, *lines = min(path.glob("*.txt")).read_text(encoding="utf-8").splitlines()
        nodes = [line.split() for line in lines[: int(first.split()[0])]]
        edges = [[i, int(j)] for i, words in enumerate(nodes) for j in words[2:]]
        return {"nodes": [[int(words[0])] for words in nodes], "edges": edges}
    if path.suffix == ".npz":
        return np.load(path)["x"][0].tolist()
    row = read_table(path, entry).iloc[0].drop([entry.label, entry.domain]).dropna()
    values = {str(name): value.item() if hasattr(value, "item") else value for name, value in row.items()}
    if SMILES in values:
        return values[SMILES]
    if entry.kind == "text":
        texts = [values[name] for name in TEXT_COLUMNS if name in values]
        return texts[0] if len(texts) == 1 else texts
    return values
