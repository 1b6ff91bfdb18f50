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


def test_statements_of_the_text_hold():
    mlp, fcn = (RESULTS["noiseless"][kind] for kind in NETWORKS)
    assert mlp["pixel-shift"] < 0.1 < 0.9 < mlp["patch-shift"]
    assert fcn["patch-shift"] < 0.1 < 0.7 < fcn["pixel-shift"]
    for row in RESULTS["noisy"]["mlp"].values():
        assert all(each["pixel-shift"] < 0.2 < 0.5 < each["patch-shift"] for each in row.values())
    for row in RESULTS["noisy"]["fcn"].values():
        assert all(each["patch-shift"] < 0.25 < each["pixel-shift"] for each in row.values())
        assert row["10"]["valid"] < row["50"]["valid"] < row["200"]["valid"]
    best = {name: max(RESULTS["cases"]["8"][name]) for name in ("experts", "one network")}
    assert best["experts"] < 0.2 * min(RESULTS["cases"]["8"]["one network"])
    assert min(RESULTS["cases"]["4"]["experts"]) > 5 * best["experts"]


@pytest.mark.slow
def test_study_reproduces_its_results():
    for kind in NETWORKS:
        for name, value in learned(kind, World())[50].items():
            assert value == pytest.approx(RESULTS["noiseless"][kind][name], abs=0.03)
