"""Fixtures that call the command line on small files."""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.cli import main

GOOD = ("lovely", "great", "superb", "fine", "brilliant")
BAD = ("awful", "poor", "dreadful", "broken", "dull")
DOMAINS = ("books", "films", "shoes", "phones")
QUICK = ["--encoder", "bilstm", "--set", "encoder.hidden=8", "--set", "encoder.embedding=8", "--batch", "8",
         "--lr", "0.02"]  # fmt: skip


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def holdfast(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*words) -> Result:
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, words)])
        with pytest.raises(SystemExit) as exit:
            main()
        printed = capsys.readouterr()
        return Result(exit.value.code, printed.out, printed.err)

    return call


def write_reviews(path: Path, *, size: int = 40, header: str = "text,label,domain") -> Path:
    rng = random.Random(0)
    lines = [header]
    for domain in DOMAINS:
        for i in range(size):
            good = i % 2 == 0
            words = [f"{domain}{rng.randrange(9)}", rng.choice(GOOD if good else BAD), "thing", "indeed"]
            lines.append(f'"{" ".join(words)}",{"pos" if good else "neg"},{domain}')
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def reviews(tmp_path) -> Path:
    return write_reviews(tmp_path / "reviews.csv")


@pytest.fixture
def quick() -> list[str]:
    """Options of a small and fast model."""
    return QUICK
