"""The soak test itself: mutations are reproducible, faults happen where they are armed, and failures are reported."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import BadInput
from tests.generators.mutate import mutate, mutate_json
from tests.soak import inputs
from tests.soak.__main__ import main
from tests.soak.faulty import LIBRARY, SOURCE

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def test_mutations_are_reproducible_and_differ():
    samples = [b"text,label\na,b\n", b'{"text": "a"}']
    first, second = ([mutate(samples, random.Random(seed)) for seed in range(200)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 100
    documents = [{"example": [1, 2]}]
    assert len({mutate_json(documents, random.Random(seed)) for seed in range(100)}) > 20
    assert documents == [{"example": [1, 2]}]


def test_exception_and_crash_are_failures():
    def check(contents):
        if contents == [b"crash"]:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("unexpected") if contents == [b"error"] else BadInput("a sentence")

    for content, text in ((b"error", "unexpected"), (b"crash", "ended with code -9")):
        result = inputs.Result()
        source = inputs.Source([content], check)
        inputs._block("kind", source, 1, 0, result, generate=lambda *_: [content])  # noqa: B023
        assert result.outcomes["failed"] == 1
        assert text in result.failures[0]["error"]


PROGRAM = """
import errno, sys
from pathlib import Path
from holdfast.core.files import write_text
from tests.soak.faulty import FaultyFiles
files, folder = FaultyFiles(), Path(sys.argv[1])
files.watch(folder)
write_text(folder / "a", "old")
for operation in ("open", "write", "fsync", "rename"):
    files.arm((operation,), "fail", errno.EIO, first=1)
    try:
        write_text(folder / "a", "new")
        print(operation, "succeeded")
    except ValueError as error:
        print(operation, files.hits, (folder / "a").read_text(), error)
files.arm(("write",), "short once", first=1)
write_text(folder / "a", "new" * 100)
print((folder / "a").read_text() == "new" * 100, files.hits)
files.arm(("write",), "kill half", first=1)
write_text(folder / "a", "newer")
"""


@needs_compiler
def test_faults_and_kills_happen_at_the_armed_operation(tmp_path):
    library = tmp_path / "faulty.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    (tmp_path / "here").mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(library), LIBRARY: str(library)}
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "here")]
    root = Path(__file__).resolve().parents[3]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=root, check=False)
    assert ran.returncode == -9, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.split()[:3] for line in lines[:4]] == [[n, "1", "old"] for n in ("open", "write", "fsync", "rename")]
    assert all("cannot write" in line for line in lines[:4])
    assert (tmp_path / "here" / "a").read_text() == "new" * 100  # the killed write left a draft only
    assert next(path.name for path in (tmp_path / "here").iterdir() if path.name != "a").endswith(".draft")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["kills", "--count", "6", "--only", "fit"],
        ["faults", "--count", "1", "--only", "record"],
        ["inputs", "--count", "300", "--only", "csv", "records"],
    ],
)
def test_sections_run(words, tmp_path):
    assert main([*words, "--out", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / f"{words[0]}.json").read_text())
    assert not summary["failures"]
    assert summary.get("kills") == 6 or summary.get("cases", 0) >= 20 or summary.get("inputs") == 300
    assert all(counts["rejected"] > 10 for counts in summary.get("kinds", {}).values())
