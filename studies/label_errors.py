"""Table of label errors in docs/studies/monitoring.md; `python -m studies.label_errors FOLDER` measures again.

A share of the labels of each data set is replaced by another class. The audit searches the changed labels without
knowing them; without any change, everything that it reports counts as a false alarm, although real data has label
errors of its own.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.auditing.examples import Examples
from holdfast.auditing.label_errors import find_label_errors
from holdfast.data.dataset import Dataset
from holdfast.data.synthetic import world
from studies.monitoring import SETS
from studies.tables import RESULTS, header

FLIPPED, SEEDS = 0.05, (0, 1, 2)
RESULT = RESULTS / "monitoring" / "label-errors.json"
WORLDS = {"vectors": ("vector", 3), "texts": ("text", 2)}  # kind and classes of synthetic data


def flip(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, np.ndarray]:
    """Return the data set with a share of labels replaced by another class, and which were (n,)."""
    rng, y = np.random.default_rng(seed), dataset.y.copy()
    rows = rng.permutation(len(y))[: round(share * len(y))]
    y[rows] = (y[rows] + rng.integers(1, len(dataset.classes), len(rows))) % len(dataset.classes)
    return replace(dataset, y=y), y != dataset.y


def _search(dataset: Dataset, wrong: np.ndarray, seed: int) -> dict[str, Any]:
    """Return the number of reported rows, how many of them are wrong, and what is expected by chance."""
    errors = find_label_errors(Examples(dataset), {name: dataset.rows_of(name) for name in dataset.domains}, seed=seed)
    hits = sum(bool(wrong[error.row - 1]) for error in errors.rows)
    return {
        "seed": seed, "wrong": int(wrong.sum()), "reported": len(errors.rows), "hits": hits,
        "suspicious": errors.suspicious, "expected": errors.expected, "accuracy": round(errors.accuracy or 0.0, 4),
        "unsearched": list(errors.unsearched), "searched": not errors.skipped,
    }  # fmt: skip


def measure(folder: Path) -> dict[str, Any]:
    """Search each data set as it is, and with changed labels."""
    start, sets = time.monotonic(), {name: read(folder) for name, (read, _) in SETS.items()}
    for name, (kind, classes) in WORLDS.items():
        sets[f"synthetic {name}"] = world(kind, "none", domains=4, size=300, classes=classes, seed=0)
    results = []
    for name, dataset in sets.items():
        clean = _search(dataset, np.zeros(len(dataset), dtype=bool), 0)
        runs = [_search(*flip(dataset, FLIPPED, seed), seed) for seed in SEEDS]
        results.append({"data": name, "rows": len(dataset), "clean": clean, "flipped": runs})
    return {
        "command": "python -m studies.label_errors FOLDER", "share": FLIPPED, "results": results,
        "seconds": round(time.monotonic() - start), "machine": f"{platform.machine()}, CPU",
    }  # fmt: skip


def label_errors() -> list[str]:
    """Precision and recall of reported label errors per data set, over all seeds."""
    lines = header(
        "data", "rows", "accuracy", "reported if none is changed", "changed", "reported", "precision", "recall"
    )
    for each in json.loads(RESULT.read_text(encoding="utf-8"))["results"] if RESULT.is_file() else ():
        runs, clean = each["flipped"], each["clean"]
        wrong, reported, hits = (sum(run[key] for run in runs) for key in ("wrong", "reported", "hits"))
        before = "not searched"
        if clean["searched"]:
            before = f"{clean['reported']} ({clean['suspicious']} suspicious, {clean['expected']:.0f} by chance)"
        precision = f"{hits / reported:.2f}" if reported else "none"
        cells = [each["data"], each["rows"], f"{clean['accuracy']:.2f}", before, wrong, reported, precision]
        lines.append(f"| {' | '.join(map(str, cells))} | {hits / wrong:.2f} |")
    return lines


TABLES = {"label-errors": label_errors}


if __name__ == "__main__":
    RESULT.write_text(json.dumps(measure(Path(sys.argv[1])), indent=1) + "\n", encoding="utf-8")
