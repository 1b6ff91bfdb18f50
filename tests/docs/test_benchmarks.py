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


def test_the_run_before_is_in_the_record():
    before, page = RECORD["before"], PAGE.replace("\n", " ")
    found = {result["case"]: f"{result['ratio']:.2f}" for result in before["results"]}
    eager, compiled = (found[f"gmoe-step/vit-step, {way}, k=1"] for way in ("eager", "compiled"))
    assert f"gave {eager} eagerly and {compiled} compiled" in page
    first, second, third = (f"{ratio:.2f}" for ratio in before["gmoe-step/vit-step, compiled, k=1, again"])
    assert f"three more of the compiled step {first}, {second} and {third}." in page
    assert f"took {before['in one graph']:.2f} in the run before" in page
