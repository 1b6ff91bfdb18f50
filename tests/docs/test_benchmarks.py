"""The figures of experts and of HMA in docs/benchmarks.md are those of their records."""

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
DEVICES = ("cpu", "cuda")
HMA = {
    "step of HMA / plain, class token and head learn": "hma-step/plain, head+cls",
    "memory of that step / plain": "hma-memory/plain, head+cls",
    "step of HMA / plain, all learns": "hma-step/plain, full",
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


def test_the_table_of_hma_is_its_records():
    records = [json.loads((ROOT / f"results/bench/hma-{name}.json").read_text(encoding="utf-8")) for name in DEVICES]
    cpu, gpu = ({result["case"]: result for result in record["results"]} for record in records)
    assert {*cpu, *gpu} == {"repeated-read/read", *HMA.values()}
    assert all(result["ok"] for result in (*cpu.values(), *gpu.values()))
    read = "repeated-read/read"
    assert cpu[read]["bar"] == gpu[read]["bar"]
    told = f"{cpu[read]['ratio']:.0f} | {gpu[read]['ratio']:.0f} | at least {gpu[read]['bar']}"
    assert f"| repeated read / read | {told} |" in PAGE
    for label, case in HMA.items():
        here = cpu.get(case)  # a CPU has no count of memory
        ratio, bar = ("", "") if here is None else (f" {here['ratio']:.2f}", f" ({here['bar']} on a CPU)")
        assert f"| {label} |{ratio} | {gpu[case]['ratio']:.2f} | {gpu[case]['bar']:.2f}{bar} |" in PAGE


def test_the_run_after_is_in_the_record():
    after, page = RECORD["later"], PAGE.replace("\n", " ")
    found = {result["case"]: f"{result['ratio']:.2f}" for result in after["results"]}
    first, second = (f"{ratio:.2f}" for ratio in after["gmoe-step/vit-step, eager, k=1, again"])
    eager, compiled = (found[f"gmoe-step/vit-step, {mode}, k=1"] for mode in ("eager", "compiled"))
    assert f"gave {eager} eagerly, then {first} and {second}, and {compiled} compiled" in page
    plain, one, two = after["kernels a step, ms"].values()
    assert f"took {one / plain:.2f} times those of the plain step, with two experts {two / plain:.2f}" in page
