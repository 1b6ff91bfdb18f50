# evidence_gmoe.py
"""The tables of GMoE in docs/reproduction.md, made from the records in results/gmoe."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from holdfast.record import RunRecord, load
from tests.docs.paired import compared

RESULTS = Path(__file__).parents[2] / "results"
SEEDS = 3
STARTS = ("tiny-imagenet", "dinov2-shape")
PLAIN, NULL = "ERM", "experts by fixed random routing"
AGAINST = {PLAIN: "ERM", NULL: "random routing"}
EXPERTS: dict[str, Any] = {"neck": "experts", "top": 2, "at": "last-two", "router": "cosine"}
# row -> what its run has that plain training has not
ROWS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "GMoE": EXPERTS,
    "GMoE, one expert a token": {**EXPERTS, "top": 1},
    "GMoE, linear router": {**EXPERTS, "router": "linear"},
    "GMoE, every second block": {**EXPERTS, "at": "every-two"},
    "GMoE with SWAD": {**EXPERTS, "method": "swad(erm)"},
    "GMoE with Fish": {**EXPERTS, "method": "fish"},
    "GMoE with CORAL": {**EXPERTS, "method": "coral"},
    NULL: {**EXPERTS, "router": "random"},
    "one network of the work of two experts": {"neck": "wide", "times": 2},
    "one network of the size of six experts": {"neck": "wide", "times": 6},
}


def _row(record: RunRecord) -> str:
    spec = record.spec
    told = {"method": spec["method"], "neck": spec["neck"], **spec["neck_args"]}
    plain = {"method": "erm", "neck": "none"}
    kept = ("method", "neck", "top", "at", "router", "times")
    said = {key: told[key] for key in kept if key in told and told[key] != plain.get(key)}
    (name,) = (name for name, row in ROWS.items() if row == said)
    return name


def chosen(start: str) -> list[str]:
    """Leave one domain out, at the rate that the validation of the sources chose."""
    rate = best_rate(start)
    found: Any = defaultdict(lambda: defaultdict(dict))
    for record in load(RESULTS / f"gmoe/{start}-search"):
        if record.spec["lr"] == rate:
            for target, told in record.stages[-1]["test"].items():
                found[_row(record)][target][record.spec["seed"]] = 100 * told["accuracy"]
    return compared(found, (PLAIN, "GMoE", NULL), sorted(found[PLAIN]), seeds=SEEDS, against=AGAINST)


def searched(start: str) -> list[str]:
    """The rate by source validation, first seed: accuracies on validation rows of the sources, and on the targets."""
    lines = ["| row | rate | validation of the sources | targets |", "|---|---|---|---|"]
    for rate, rows in sorted(_runs_by_rate(start).items()):
        for row in (PLAIN, "GMoE"):
            assert len(rows[row]) == 4
            valid, test = (_mean(rows[row], part) for part in ("valid", "test"))
            lines.append(f"| {row} | {rate:g} | {valid:.1f} | {test:.1f} |")
    return lines


def best_rate(start: str) -> float:
    """Of the mean over plain training and GMoE on validation rows of the sources."""
    runs = _runs_by_rate(start)
    return max(runs, key=lambda rate: fmean(_mean(runs[rate][row], "valid") for row in (PLAIN, "GMoE")))


def _runs_by_rate(start: str) -> dict[float, dict[str, list[RunRecord]]]:
    found: Any = defaultdict(lambda: defaultdict(list))
    for record in (*load(RESULTS / f"gmoe/{start}-search"), *load(RESULTS / f"gmoe/{start}")):
        if record.spec["seed"] == 0:
            found[record.spec["lr"]][_row(record)].append(record)
    return found


def _mean(records: list[RunRecord], part: str) -> float:
    return 100 * fmean(fmean(told["accuracy"] for told in record.stages[-1][part].values()) for record in records)
