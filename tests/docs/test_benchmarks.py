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
    "training step, compiled, recorded graphs": "gmoe-step/vit-step, recorded, k={}",
    "kernels of a step, eager": "gmoe-kernels/vit-kernels, eager, k={}",
    "kernels of a step, compiled": "gmoe-kernels/vit-kernels, compiled, k={}",
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
    (many, first), (more, second) = (
        (len(again[mode]), f"{min(again[mode]):.2f} and {max(again[mode]):.2f}") for mode in ("eager", "compiled")
    )
    assert f"over {many} runs on machines alike the eager step lay between {first}" in page
    assert f"over {more} the compiled one between {second}." in page
    one, two = ({f"{ratio:.2f}" for ratio in RECORD["host ahead"][key]} for key in ("k=1", "k=2"))
    assert f"ahead of the GPU the eager step took {one.pop()}, with two experts {two.pop()}" in page
    assert not one | two


def test_what_recordings_of_layers_give_is_in_the_record():
    page, told = PAGE.replace("\n", " "), RECORD["layers that record themselves"]
    now = {result["case"]: result["ratio"] for result in RECORD["results"]}
    with_them, without = (
        sorted([*told["eager"]["k=1"], now["gmoe-step/vit-step, eager, k=1"]]),
        told["eager, not recorded"],
    )
    low, middle, high = (f"{ratio:.2f}" for ratio in with_them)
    assert f"took {low}, {middle} and {high} with recordings and {without['k=1'][0]:.2f} without" in page
    assert f"with two experts {told['eager']['k=2'][0]:.2f} and {without['k=2'][0]:.2f};" in page
    (one, two), (less, least) = (list(told[key].values()) for key in ("memory", "memory, not recorded"))
    assert f"rises from {less:.2f} to {one:.2f}, with two experts from {least:.2f} to {two:.2f}" in page
    assert f"once more on this machine it took {told['compiled, as an operator']['k=1'][0]:.2f}." in page
    assert f"which then records itself, it took {told['compiled, with breaks']['k=1'][0]:.2f}." in page


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
