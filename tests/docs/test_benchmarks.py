"""The figures of experts on a GPU in docs/benchmarks.md are those of their record."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results/bench/experts-cuda.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
CASES = {
    "training step, eager": "gmoe-step/vit-step, eager, k={}",
    "training step, compiled": "gmoe-step/vit-step, compiled, k={}",
    "prediction, eager": "gmoe-predict/vit-predict, eager, k={}",
    "prediction, compiled": "gmoe-predict/vit-predict, compiled, k={}",
    "memory of a step": "gmoe-memory/vit-memory, k={}",
}


def test_the_table_of_experts_is_its_record():
    found = {result["case"]: result for result in RECORD["results"]}
    for label, case in CASES.items():
        cells = []
        for top in (1, 2):
            result = found[case.format(top)]
            missed = "" if result["ok"] else ", missed"
            cells += [f"{result['ratio']:.2f}", f"{result['bar']:.2f}{missed}"]
        assert f"| {label} | {' | '.join(cells)} |" in PAGE


def test_what_was_measured_again_is_in_the_record():
    first, second, third = (f"{ratio:.2f}" for ratio in RECORD["again"]["with a break"])
    assert f"three times more right after: {first}, {second} and {third}" in PAGE
    (whole,) = RECORD["again"]["in one graph"]
    assert f"took {whole:.2f} in the same run" in PAGE.replace("\n", " ")
