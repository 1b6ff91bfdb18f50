"""The tables of GMoE in docs/reproduction.md, made from the records in results/gmoe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import fmean
from typing import Any

from holdfast.record import RunRecord
from studies.tables import compared, records

SEEDS = 3
STARTS = {"tiny-imagenet": 3, "dinov2-shape": 5}  # seeds at the rate of choice
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
    "ERM with SWAD": {"method": "swad(erm)"},
    "experts by fixed random routing, with SWAD": {**EXPERTS, "router": "random", "method": "swad(erm)"},
    NULL: {**EXPERTS, "router": "random"},
    "one network of the work of two experts": {"neck": "wide", "times": 2},
    "one network of the size of six experts": {"neck": "wide", "times": 6},
}
FEW = (PLAIN, "GMoE", "GMoE, one expert a token", NULL, *list(ROWS)[-2:])


def _row(record: RunRecord) -> str:
    spec = record.spec
    told = {"method": spec["method"], "neck": spec["neck"], **spec["neck_args"]}
    plain = {"method": "erm", "neck": "none"}
    kept = ("method", "neck", "top", "at", "router", "times")
    said = {key: told[key] for key in kept if key in told and told[key] != plain.get(key)}
    (name,) = (name for name, row in ROWS.items() if row == said)
    return name


def _scores(folder: str, score: Callable[[RunRecord], dict[str, float]]) -> dict[str, Any]:
    found: Any = defaultdict(lambda: defaultdict(dict))
    for record in records(folder):
        for column, value in score(record).items():
            found[_row(record)][column][record.spec["seed"]] = 100 * value
    return found


def _by_target(metric: str) -> Callable[[RunRecord], dict[str, float]]:
    return lambda record: {target: told[metric] for target, told in record.stages[-1]["test"].items()}


def _by_source(record: RunRecord) -> dict[str, float]:
    """The mean over the domains that did not train."""
    (source,) = record.spec["plan_args"]["sources"]
    return {source: fmean(told["accuracy"] for target, told in record.stages[-1]["test"].items() if target != source)}


def pacs(start: str) -> list[str]:
    """Leave one domain out, from one set of weights."""
    found = _scores(f"gmoe/{start}", _by_target("accuracy"))
    rows = [row for row in ROWS if row in found]
    return compared(found, rows, sorted(found[PLAIN]), seeds=SEEDS, against=AGAINST)


def longer(start: str) -> list[str]:
    """2.5 times the steps, at the rate of choice."""
    found = _scores(f"gmoe/{start}-long", _by_target("accuracy"))
    return compared(found, (PLAIN, "GMoE", NULL), sorted(found[PLAIN]), seeds=SEEDS, against=AGAINST)


def chosen(start: str) -> list[str]:
    """The same at the rate that the validation of the sources chose."""
    rate = best_rate(start)
    found = _scores(
        f"gmoe/{start}-search", lambda each: _by_target("accuracy")(each) if each.spec["lr"] == rate else {}
    )
    return compared(found, (PLAIN, "GMoE", NULL), sorted(found[PLAIN]), seeds=STARTS[start], against=AGAINST)


def single(start: str) -> list[str]:
    """From each domain alone."""
    found = _scores(f"gmoe/single-{start}", _by_source)
    return compared(found, (PLAIN, "GMoE", NULL), sorted(found[PLAIN]), seeds=SEEDS, against=AGAINST)


def amazon() -> list[str]:
    """Experts in MiniLM; plain training is that of HMA's table."""
    found = _scores("gmoe/amazon", _by_target("macro_f1"))
    for record in records("hma/amazon"):
        if record.spec["method"] == "erm" and record.spec["neck"] == "none":
            for target, told in record.stages[-1]["test"].items():
                found[PLAIN][target][record.spec["seed"]] = 100 * told["macro_f1"]
    return compared(found, FEW, sorted(found[PLAIN]), seeds=SEEDS, against=AGAINST)


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
    for record in (*records(f"gmoe/{start}-search"), *records(f"gmoe/{start}")):
        if record.spec["seed"] == 0:
            found[record.spec["lr"]][_row(record)].append(record)
    return found


def _mean(runs: list[RunRecord], part: str) -> float:
    return 100 * fmean(fmean(told["accuracy"] for told in record.stages[-1][part].values()) for record in runs)
