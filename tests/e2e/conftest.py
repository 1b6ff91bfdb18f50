"""Fixtures that call the command line on small files."""

import random
from pathlib import Path

import pytest

from tests.calls import run_cli

GOOD = ("lovely", "great", "superb", "fine", "brilliant")
BAD = ("awful", "poor", "dreadful", "broken", "dull")
DOMAINS = ("books", "films", "shoes", "phones")
QUICK = ["--encoder", "bilstm", "--set", "encoder.hidden=8", "--set", "encoder.embedding=8", "--batch", "8",
         "--lr", "0.02"]  # fmt: skip


@pytest.fixture
def holdfast(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return run_cli


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
