"""The tables of docs/theory.md are those of the record of its study, and the study makes the record again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.analysis.alignment import COUNTS, NETWORKS, NOISY, World, learned

ROOT = Path(__file__).resolve().parents[2]
FOUND = json.loads((ROOT / "results" / "gmoe" / "alignment.json").read_text())["found"]
SETS = ("valid", "pixel-shift", "patch-shift")


def percent(value: float) -> str:
    return f"{100 * value:.0f}"


def lines() -> list[str]:
    names = dict(zip(NETWORKS, ("MLP", "convolution"), strict=True))
    made = [[names[kind], *(percent(row[name]) for name in SETS)] for kind, row in FOUND["noiseless"].items()]
    for kind, noisy in FOUND["noisy"].items():
        for chances, row in noisy.items():
            told = (", ".join(percent(each[name]) for each in row.values()) for name in SETS)
            made.append([names[kind], *chances.split(", "), *told])
    for count, row in FOUND["cases"].items():
        made.append([count, *(", ".join(f"{v:.3f}" for v in values) for values in row.values())])
    return [f"| {' | '.join(cells)} |" for cells in made]


def test_every_line_of_the_tables_is_in_the_record():
    text = (ROOT / "docs" / "theory.md").read_text()
    found = lines()
    assert len(found) == len(NETWORKS) * (1 + len(NOISY)) + len(COUNTS) == 26
    for line in found:
        assert line in text, line


def test_what_the_text_says_of_the_record():
    mlp, fcn = (FOUND["noiseless"][kind] for kind in NETWORKS)
    assert mlp["pixel-shift"] < 0.1 < 0.9 < mlp["patch-shift"]
    assert fcn["patch-shift"] < 0.1 < 0.7 < fcn["pixel-shift"]
    for row in FOUND["noisy"]["mlp"].values():
        assert all(each["pixel-shift"] < 0.2 < 0.5 < each["patch-shift"] for each in row.values())
    for row in FOUND["noisy"]["fcn"].values():
        assert all(each["patch-shift"] < 0.25 < each["pixel-shift"] for each in row.values())
        assert row["10"]["valid"] < row["50"]["valid"] < row["200"]["valid"]
    best = {name: max(FOUND["cases"]["8"][name]) for name in ("experts", "one network")}
    assert best["experts"] < 0.2 * min(FOUND["cases"]["8"]["one network"])
    assert min(FOUND["cases"]["4"]["experts"]) > 5 * best["experts"]


@pytest.mark.slow
def test_the_study_makes_its_record_again():
    for kind in NETWORKS:
        for name, value in learned(kind, World())[50].items():
            assert value == pytest.approx(FOUND["noiseless"][kind][name], abs=0.03)
