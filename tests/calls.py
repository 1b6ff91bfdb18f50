"""Run the command line as a shell does, and check what every call must satisfy."""

import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main


@dataclass
class Ran:
    code: object
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_cli(*words) -> Ran:
    """Run the command line with byte streams that reject what UTF-8 cannot encode."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors) for errors in ("strict", "backslashreplace")
    )
    before, sys.argv = sys.argv, ["holdfast", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8"))
    return Ran(ended.value.code, *texts)


def check_error(ran: Ran, pattern: str, *, machine: bool = False, code: int = 2) -> None:
    """Check for one error that matches the pattern, and nothing else on stdout."""
    assert ran.code == code, (ran.out, ran.err)
    assert "Traceback" not in ran.out + ran.err
    if machine:
        assert set(ran.json) == {"error"}
        sentence = ran.json["error"]
    else:
        assert ran.out == ""
        assert ran.err.count("error: ") == 1
        sentence = ran.err.strip().splitlines()[-1]
        assert sentence.startswith("error: ")
    assert re.search(pattern, sentence), sentence


def check_outcome(ran: Ran, *, machine: bool) -> None:
    """Check for exit code 0 with a result, or another with one sentence and nothing else on stdout.

    The code is 2 for bad input, and 1 if no run of a comparison could be completed.
    """
    assert ran.code in (0, 1, 2), ran
    assert (ran.code == 1) == ("no run could be completed: " in ran.out + ran.err)
    assert "Traceback" not in ran.out + ran.err
    assert "\x1b" not in ran.out + ran.err  # no terminal control sequences
    if machine:
        result = json.loads(ran.out)
        assert ("error" in result) == (ran.code != 0)
        sentences = [result["error"]] if ran.code else []
    else:
        sentences = [line.removeprefix("error: ") for line in ran.err.split("\n") if line.startswith("error: ")]
        assert len(sentences) == (ran.code != 0), ran.err
        assert ran.code == 0 or (ran.out == "" and ran.err.rstrip("\n").split("\n")[-1].startswith("error: ")), ran
    for sentence in sentences:
        assert 10 < len(sentence) < 1000
        assert sentence == " ".join(sentence.split())


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_table(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Write a plain csv file."""
    rows = [columns, *zip(*columns.values(), strict=True)]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
