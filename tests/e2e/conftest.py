"""The command line, called as a user calls it, on small files the tests make."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.cli import main

GOOD = ("lovely", "great", "superb", "fine", "brilliant")
BAD = ("awful", "poor", "dreadful", "broken", "dull")
PLACES = ("books", "films", "shoes", "phones")


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def holdfast(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*words) -> Ran:
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Ran(ended.value.code, said.out, said.err)

    return call


def write_reviews(path: Path, *, size: int = 40, header: str = "text,label,domain") -> Path:
    chance = random.Random(0)
    lines = [header]
    for place in PLACES:
        for i in range(size):
            good = i % 2 == 0
            words = [f"{place}{chance.randrange(9)}", chance.choice(GOOD if good else BAD), "thing", "indeed"]
            lines.append(f'"{" ".join(words)}",{"pos" if good else "neg"},{place}')
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def reviews(tmp_path) -> Path:
    return write_reviews(tmp_path / "reviews.csv")


@pytest.fixture
def quick(tmp_path) -> list[str]:
    """Options that make a comparison take a second."""
    return [
        "--encoder",
        "bilstm",
        "--set",
        "encoder.hidden=8",
        "--set",
        "encoder.embedding=8",
        "--batch",
        "8",
        "--lr",
        "0.02",
    ]
