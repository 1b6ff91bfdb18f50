"""The tables of streams in docs/reproduction.md, made from the records in results/pmb."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from functools import cache
from statistics import fmean

from holdfast.report.streams import backward_transfer
from studies.tables import difference, records

SEEDS = 5
AMAZON = {  # row -> what its records say
    "fine-tuning (F)": {"method": "progressive(erm)", "neck": "none"},
    "memory, not grown (F)": {"method": "progressive(erm)", "expand": "F", "sharp": True},
    "memory that grows (F+M)": {"method": "progressive(erm)", "expand": "M", "sharp": False},
    "the same, sharper read": {"method": "progressive(erm)", "expand": "M", "sharp": True, "freeze": "none"},
    "new slots random and frozen": {"method": "progressive(erm)", "freeze": "new"},
    "parameters alone (+ FFN, F)": {"neck": "ffn"},
    "EWC": {"method": "progressive(ewc)"},
    "LwF": {"method": "lwf"},
    "replay": {"method": "progressive(replay)", "neck": "none"},
    "replay, memory that grows": {"method": "progressive(replay)", "neck": "memory"},
    "joint": {"plan": "joint"},
}


def _said(spec: dict) -> dict:
    return {
        "method": spec["method"],
        "neck": spec["neck"],
        "plan": spec["plan"],
        "expand": spec["method_args"].get("expand", ""),
        "freeze": spec["method_args"].get("freeze", "none"),
        "sharp": "temperature" in spec["neck_args"],
    }


@cache
def runs(folder: str) -> dict[str, dict[int, dict]]:
    """row -> seed -> record, of rows with every seed."""
    found: dict[str, dict[int, dict]] = defaultdict(dict)
    for record in map(asdict, records(f"pmb/{folder}")):
        said = _said(record["spec"])
        (row,) = (name for name, asked in AMAZON.items() if all(said[k] == v for k, v in asked.items()))
        found[row][record["spec"]["seed"]] = record
    return {row: found[row] for row in AMAZON if len(found[row]) == SEEDS}


def matrix(record: dict, metric: str) -> list[list[float]]:
    """Scores after each stage, in the order in which domains were learnt."""
    order = [stage["train"][0] for stage in record["stages"]]
    return [[100 * stage["test"][domain][metric] for domain in order] for stage in record["stages"]]


def last(record: dict, metric: str) -> float:
    return fmean(100 * scores[metric] for scores in record["stages"][-1]["test"].values())


def finals(runs_of_row: dict[int, dict], metric: str) -> list[float]:
    """The mean over domains after the last one, seed by seed."""
    return [last(runs_of_row[seed], metric) for seed in range(SEEDS)]


def amazon(metric: str = "macro_f1") -> list[str]:
    """One line a row: each domain after the last, their mean, backward transfer, and differences at the end."""
    found = runs("amazon")
    base, null = "fine-tuning (F)", "new slots random and frozen"
    domains = [stage["train"][0] for stage in found[base][0]["stages"]]
    lines = [
        f"| row | {' | '.join(domains)} | mean | backward transfer | against F | against random slots |",
        f"|---|{'---|' * (len(domains) + 4)}",
    ]
    for row, by_seed in found.items():
        ends = [fmean(100 * r["stages"][-1]["test"][d][metric] for r in by_seed.values()) for d in domains]
        stream = all(len(r["stages"]) > 1 for r in by_seed.values())
        back = [backward_transfer(matrix(r, metric)) for r in by_seed.values()] if stream else []
        shown = " | ".join(f"{value:.1f}" for value in [*ends, fmean(ends)])
        told = f"{fmean(value for value in back if value is not None):+.2f}" if back else "-"
        mine = finals(by_seed, metric)
        pair = ["-" if row == name else difference(mine, finals(found[name], metric)) for name in (base, null)]
        lines.append(f"| {row} | {shown} | {told} | {pair[0]} | {pair[1]} |")
    return lines
