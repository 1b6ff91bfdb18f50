"""The figures of a general memory in docs/benchmarks.md are those of their record."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = {
    "chunk-gated memory / plain step": "gmap-step/plain step, chunk-gated",
    "memory of one layer whose states are kept / plain step": "gmap-step/plain step, single, states kept",
    "one layer that reads / plain layer": "layer that reads/plain layer",
}


def test_the_table_of_a_general_memory_is_its_record():
    record = json.loads((ROOT / "results/bench/gmap-cuda.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("## A general memory: `holdfast bench gmap`\n")
    section, _, _ = rest.partition("\n## ")
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    wanted = ["| case | H200 | bar |"]
    found = {result["case"]: result for result in record["results"]}
    assert set(found) == set(CASES.values())
    for label, case in CASES.items():
        result = found[case]
        assert result["ok"]
        bar = "-" if result["bar"] is None else f"{result['bar']:g}"
        wanted.append(f"| {label} | {result['ratio']:.2f} | {bar} |")
    assert lines == wanted
    assert "H200" in record["hardware"]
