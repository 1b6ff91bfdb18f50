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
    "prediction, compiled, recorded graphs": "gmoe-predict/vit-predict, recorded, k={}",
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


def between(ratios):
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return low if low == high else f"{low} to {high}"


def test_what_recordings_of_layers_give_is_in_the_record():
    page, told = PAGE.replace("\n", " "), RECORD["layers that record themselves"]
    now = {result["case"]: result["ratio"] for result in RECORD["results"]}
    one, two, compiled = (
        [*told[mode][f"k={top}"], now[f"gmoe-step/vit-step, {mode}, k={top}"]]
        for mode, top in (("eager", 1), ("eager", 2), ("compiled", 1))
    )
    plain, other = told["eager, not recorded"], told["compiled, not recorded"]["k=1"]
    assert f"Over {len(one)} runs on machines alike the eager step with one expert took {between(one)} with " in page
    assert (
        f"recordings and {between(plain['k=1'])} without, with two experts {between(two)} and {between(plain['k=2'])}."
        in page
    )
    assert f"with one expert it took {between(compiled)} with recordings in {len(compiled)} runs, and " in page
    assert f"{between(other)} without in {len(other)};" in page
    predict = told["prediction, compiled, k=2"]
    recorded = [*predict["recorded"], now["gmoe-predict/vit-predict, compiled, k=2"]]
    assert f"a prediction with two experts {between(recorded)} and {between(predict['not recorded'])}." in page
    (one, two), (less, least) = (list(told[key].values()) for key in ("memory", "memory, not recorded"))
    assert f"rose from {less:.2f} to {one:.2f}, with two experts from {least:.2f} to {two:.2f}." in page
    broken = told["compiled, with breaks"]
    assert f"The step took {between(broken['k=1'])} in {len(broken['k=1'])} runs," in page
    assert f"the kernels alone took {between(broken['kernels, k=1'])}." in page
    alone = [*told["plain layer"], now["experts/plain layer"]]
    assert f"by itself took {between(alone)} of a plain one with the same products in {len(alone)} runs" in page


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
