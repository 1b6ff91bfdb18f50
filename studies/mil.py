"""The tables of docs/reproduction.md, made from the records in results/mil."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from functools import cache
from statistics import fmean, stdev

from studies.tables import RESULTS, difference, records

ROWS = {
    "ERM": {"method": "erm", "neck": "none", "inside": False},
    "+ memory": {"method": "erm", "frozen": False, "memory": True},
    "untrained memory": {"method": "erm", "frozen": True, "same": True, "sharp": False},
    "untrained memory, share 0.5": {"method": "erm", "frozen": True, "same": False},
    "untrained memory, sharper read": {"method": "erm", "frozen": True, "sharp": True},
    "+ FFN": {"method": "erm", "neck": "ffn"},
    "invariance w/o memory": {"method": "dann"},
    "CORAL": {"method": "coral"},
    "IRM": {"method": "irm"},
    "MIL, published settings": {"method": "mil", "chosen": False},
    "MIL, chosen settings": {"method": "mil", "chosen": True, "sharp": False},
    "MIL, sharper read": {"method": "mil", "sharp": True},
    "oracle": {"inside": True},
}


def _said(spec: dict) -> dict:
    """What tells one row from another."""
    memory = spec["neck"].startswith("memory")
    return {
        "method": spec["method"],
        "neck": spec["neck"],
        "inside": spec["plan"] == "in-domain",
        "memory": memory,
        "frozen": memory and spec["neck_args"].get("frozen", False),
        "same": spec["neck_args"].get("share") == 0.2,  # the share of MIL's chosen settings
        "chosen": "critic_lr" in spec["method_args"],
        "sharp": "temperature" in spec["neck_args"],
    }


@cache
def runs(folder: str) -> dict[str, dict[tuple[str, int], dict]]:
    """row -> (target, seed) -> record."""
    found: dict[str, dict[tuple[str, int], dict]] = defaultdict(dict)
    studies = [name for name in (folder, f"{folder}-oracle") if (RESULTS / "mil" / f"{name}.jsonl.gz").exists()]
    for record in (asdict(each) for name in studies for each in records(f"mil/{name}")):
        said = _said(record["spec"])
        (row,) = (name for name, asked in ROWS.items() if all(said[k] == v for k, v in asked.items()))
        tests = record["stages"][-1]["test"]
        for target in tests:
            found[row][(target, record["spec"]["seed"])] = record
    return {row: found[row] for row in ROWS if row in found}


def _score(records: dict, target: str, seed: int) -> float:
    return 100 * records[(target, seed)]["stages"][-1]["test"][target]["macro_f1"]


def _against(mine: dict, other: dict) -> str:
    """The difference of the mean over targets, where there are several seeds."""
    assert mine.keys() == other.keys()
    seeds, targets = sorted({s for _, s in mine}), sorted({t for t, _ in mine})
    a, b = ([fmean(_score(each, t, s) for t in targets) for s in seeds] for each in (mine, other))
    return difference(a, b)


def scores(folder: str) -> list[str]:
    """One line a row: each target, their mean, and the difference to ERM and to the untrained memory."""
    found = runs(folder)
    targets = sorted({t for t, _ in found["ERM"]})
    lines = [
        f"| row | {' | '.join(targets)} | mean | against ERM | against the untrained memory |",
        f"|---|{'---|' * (len(targets) + 3)}",
    ]
    for row, runs_of_row in found.items():
        cells = [fmean(_score(runs_of_row, t, s) for s in range(5)) for t in targets]
        pair = [
            "-" if row in (base, "oracle") else _against(runs_of_row, found[base])
            for base in ("ERM", "untrained memory")
        ]
        shown = " | ".join(f"{c:.1f}" for c in [*cells, fmean(cells)])
        lines.append(f"| {row} | {shown} | {pair[0]} | {pair[1]} |")
    return lines


def distances(folders: tuple[str, ...] = ("amazon", "mnli")) -> list[str]:
    """One line a row: the A-distance of the target to the pooled sources, mean and deviation over targets and seeds."""
    lines = ["| row | " + " | ".join(folders) + " |", f"|---|{'---|' * len(folders)}"]
    for row in ROWS:
        cells = []
        for folder in folders:
            told = [
                r["analysis"]["a-distance"] for r in runs(folder).get(row, {}).values() if "a-distance" in r["analysis"]
            ]
            values = [each["mean"] for one in told for each in one["targets"].values()]
            cells.append(f"{fmean(values):.2f} ± {stdev(values):.2f}, n {len(values)}" if values else "-")
        if any(cell != "-" for cell in cells):
            lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def searched(folder: str, domains: int) -> list[str]:
    """One line a configuration: the mean over source-only folds, and the difference to ERM on the same folds."""
    found: dict[str, dict[tuple[str, str, int], float]] = defaultdict(dict)
    for record in map(asdict, records(f"mil/{folder}")):
        spec = record["spec"]
        own = {**spec["method_args"], **{f"neck.{k}": v for k, v in spec["neck_args"].items()}}
        told = ", ".join(f"{k} {v}" for k, v in sorted(own.items()))
        name = (spec["method"] if spec["neck"] == "none" else f"{spec['neck']}+{spec['method']}", told, spec["steps"])
        for target, score in record["stages"][-1]["test"].items():
            found[json.dumps(name)][(record["episode"], target, spec["seed"])] = 100 * score["macro_f1"]
    lines = ["| network and rule | settings | steps | folds | macro-F1 | against ERM |", "|---|---|---|---|---|---|"]
    rest = []
    for name, mine in found.items():
        method, told, steps = json.loads(name)
        base = found[json.dumps(("erm", "", steps))]
        shared = [key for key in mine if key in base]
        gap = fmean(mine[key] - base[key] for key in shared)
        shown = f"{steps} | {len(shared)} | {fmean(mine.values()):.1f} | {gap:+.2f}"
        rest.append((gap, f"| {method} | {told or '-'} | {shown} |"))
    assert domains == len({target for mine in found.values() for _, target, _ in mine})
    return lines + [line for _, line in sorted(rest, key=lambda pair: (-pair[0], pair[1]))]
