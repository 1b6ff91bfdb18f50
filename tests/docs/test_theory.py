"""The tables of docs/theory.md match the stored results of the study, and the study reproduces them."""

import json
from pathlib import Path

import pytest

from studies.alignment import COUNTS, NETWORKS, NOISY, World, learned

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "results" / "gmoe" / "alignment.json").read_text())["found"]
SETS = ("valid", "pixel-shift", "patch-shift")


def percent(value: float) -> str:
    return f"{100 * value:.0f}"


def table_lines() -> list[str]:
    names = dict(zip(NETWORKS, ("MLP", "convolution"), strict=True))
    rows = [[names[kind], *(percent(row[name]) for name in SETS)] for kind, row in RESULTS["noiseless"].items()]
    for kind, noisy in RESULTS["noisy"].items():
        for probabilities, row in noisy.items():
            accuracies = (", ".join(percent(each[name]) for each in row.values()) for name in SETS)
            rows.append([names[kind], *probabilities.split(", "), *accuracies])
    for count, row in RESULTS["cases"].items():
        rows.append([count, *(", ".join(f"{v:.3f}" for v in values) for values in row.values())])
    return [f"| {' | '.join(cells)} |" for cells in rows]


def test_tables_match_the_stored_results():
    text = (ROOT / "docs" / "theory.md").read_text()
    lines = table_lines()
    assert len(lines) == len(NETWORKS) * (1 + len(NOISY)) + len(COUNTS) == 26
    for line in lines:
        assert line in text, line


@pytest.mark.slow
def test_study_reproduces_its_results():
    for kind in NETWORKS:
        for name, value in learned(kind, World())[50].items():
            assert value == pytest.approx(RESULTS["noiseless"][kind][name], abs=0.03)
