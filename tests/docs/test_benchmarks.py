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


def test_steps_of_experts_on_other_machines_are_in_the_record():
    page, again = PAGE.replace("\n", " "), RECORD["again, k=1"]
    now = {result["case"]: result["ratio"] for result in RECORD["results"]}
    steps = {mode: [*again[mode], now[f"gmoe-step/vit-step, {mode}, k=1"]] for mode in ("eager", "compiled")}
    steps["compiled"] += RECORD["after, compiled, k=1"]
    first, second = (f"{min(found):.2f} and {max(found):.2f}" for found in steps.values())
    count = len(steps["eager"])
    assert f"Over {count} runs on machines alike the eager step with one expert lay between {first}" in page
    assert f"over {len(steps['compiled'])} the compiled one between {second}." in page
    quick, slow = RECORD["asked for in, ms"]["plain"]
    assert f"asks for a plain step in {quick:.0f} ms" in page
    assert f"a host that needs {slow:.0f} ms" in page
    one, two = ({f"{ratio:.2f}" for ratio in RECORD["host ahead"][key]} for key in ("k=1", "k=2"))
    assert f"took {one.pop()} times the plain one with one expert, and {two.pop()} with two" in page
    assert not one | two
    assert f"the compiled step with one expert took {RECORD['in one graph']:.2f}." in page
    first, second = RECORD["compiled with recorded graphs, k=1"]["ratios"]
    assert f"and breaks, it took {first:.2f} and {second:.2f}." in page
    now = RECORD["as an operator"]
    one, two = ([f"{ratio:.2f}" for ratio in now["compiled"][key]] for key in ("k=1", "k=2"))
    assert f"the compiled step took {' and '.join(one)} with one expert and {two[0]} with two" in page
    one, two = (now["recorded"][key][0] for key in ("k=1", "k=2"))
    assert f"recorded graphs {one:.2f} and {two:.2f}**, within both bars" in page
    assert one <= 1.10
    assert two <= 1.20


def test_kernels_of_experts_are_in_the_record():
    page, spent = PAGE.replace("\n", " "), RECORD["kernels a step, ms"]
    plain, one, two = spent["eager"].values()
    assert f"alone take {one / plain:.2f} times those of the plain step, with two experts {two / plain:.2f}" in page
    plain, one, pieces = spent["compiled"].values()
    assert f"compiled, with one expert, {one / plain:.2f}. They took {pieces / plain:.2f} while" in page


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
