"""Tables of the GMoE study (docs/studies/gmoe.md), computed from the records in results/gmoe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

from holdfast.record import RunRecord
from studies.tables import compared, header, records

SEEDS = 3
WEIGHTS = {"tiny-imagenet": 3, "dinov2-shape": 5}  # initial weights -> seeds at the chosen rate
ERM, RANDOM = "ERM", "random routing"
AGAINST = {ERM: "ERM", RANDOM: "random routing"}
EXPERTS: dict[str, Any] = {"neck": "experts", "top": 2, "at": "last-two", "router": "cosine"}
# row -> the settings in which a run differs from plain training
ROWS: dict[str, dict[str, Any]] = {
    ERM: {},
    "GMoE": EXPERTS,
    "GMoE, one expert per token": {**EXPERTS, "top": 1},
    "GMoE, linear router": {**EXPERTS, "router": "linear"},
    "GMoE, every second block": {**EXPERTS, "at": "every-two"},
    "GMoE with SWAD": {**EXPERTS, "method": "swad(erm)"},
    "GMoE with Fish": {**EXPERTS, "method": "fish"},
    "GMoE with CORAL": {**EXPERTS, "method": "coral"},
    "ERM with SWAD": {"method": "swad(erm)"},
    "random routing with SWAD": {**EXPERTS, "router": "random", "method": "swad(erm)"},
    RANDOM: {**EXPERTS, "router": "random"},
    "one wide layer, compute of two experts": {"neck": "wide", "times": 2},
    "one wide layer, parameters of six experts": {"neck": "wide", "times": 6},
}
MAIN = (ERM, "GMoE", RANDOM)
AMAZON = (ERM, "GMoE", "GMoE, one expert per token", RANDOM, *list(ROWS)[-2:])


def _row(record: RunRecord) -> str:
    spec = record.spec
    settings = {"method": spec["method"], "neck": spec["neck"], **spec["neck_args"]}
    plain = {"method": "erm", "neck": "none"}
    names = ("method", "neck", "top", "at", "router", "times")
    changed = {name: settings[name] for name in names if name in settings and settings[name] != plain.get(name)}
    (row,) = (row for row, wanted in ROWS.items() if wanted == changed)
    return row


def _scores(study: str, score: Callable[[RunRecord], dict[str, float]]) -> dict[str, Any]:
    scores: Any = defaultdict(lambda: defaultdict(dict))
    for record in records(study):
        for column, value in score(record).items():
            scores[_row(record)][column][record.spec["seed"]] = 100 * value
    return scores


def _by_target(metric: str) -> Callable[[RunRecord], dict[str, float]]:
    return lambda record: {target: scores[metric] for target, scores in record.stages[-1]["test"].items()}


def _by_source(record: RunRecord) -> dict[str, float]:
    """Return the mean accuracy over the domains that were not trained on."""
    (source,) = record.spec["plan_args"]["sources"]
    tests = record.stages[-1]["test"].items()
    return {source: fmean(scores["accuracy"] for target, scores in tests if target != source)}


def pacs(weights: str) -> list[str]:
    """Leave one domain out from one set of initial weights, all rows."""
    scores = _scores(f"gmoe/{weights}", _by_target("accuracy"))
    rows = [row for row in ROWS if row in scores]
    return compared(scores, rows, sorted(scores[ERM]), seeds=SEEDS, against=AGAINST)


def longer(weights: str) -> list[str]:
    """Leave one domain out at the chosen rate with 2.5 times the steps."""
    scores = _scores(f"gmoe/{weights}-long", _by_target("accuracy"))
    return compared(scores, MAIN, sorted(scores[ERM]), seeds=SEEDS, against=AGAINST)


def chosen(weights: str) -> list[str]:
    """Leave one domain out at the rate that source validation chose."""
    rate, by_target = best_rate(weights), _by_target("accuracy")
    scores = _scores(f"gmoe/{weights}-search", lambda record: by_target(record) if record.spec["lr"] == rate else {})
    return compared(scores, MAIN, sorted(scores[ERM]), seeds=WEIGHTS[weights], against=AGAINST)


def single(weights: str) -> list[str]:
    """Train on one domain, test on the others."""
    scores = _scores(f"gmoe/single-{weights}", _by_source)
    return compared(scores, MAIN, sorted(scores[ERM]), seeds=SEEDS, against=AGAINST)


def amazon() -> list[str]:
    """Experts in MiniLM; ERM comes from the records of HMA, which have the same settings."""
    scores = _scores("gmoe/amazon", _by_target("macro_f1"))
    for record in records("hma/amazon"):
        if record.spec["method"] == "erm" and record.spec["neck"] == "none":
            for target, test in record.stages[-1]["test"].items():
                scores[ERM][target][record.spec["seed"]] = 100 * test["macro_f1"]
    return compared(scores, AMAZON, sorted(scores[ERM]), seeds=SEEDS, against=AGAINST)


def searched(weights: str) -> list[str]:
    """Accuracy by learning rate with the first seed, on validation rows of the sources and on the targets."""
    lines = header("row", "rate", "source validation", "targets")
    for rate, rows in sorted(_runs_by_rate(weights).items()):
        for row in (ERM, "GMoE"):
            assert len(rows[row]) == 4
            valid, test = (_mean(rows[row], part) for part in ("valid", "test"))
            lines.append(f"| {row} | {rate:g} | {valid:.1f} | {test:.1f} |")
    return lines


def best_rate(weights: str) -> float:
    """Return the rate with the best mean of ERM and GMoE on source validation."""
    runs = _runs_by_rate(weights)
    return max(runs, key=lambda rate: fmean(_mean(runs[rate][row], "valid") for row in (ERM, "GMoE")))


def _runs_by_rate(weights: str) -> dict[float, dict[str, list[RunRecord]]]:
    by_rate: Any = defaultdict(lambda: defaultdict(list))
    for record in (*records(f"gmoe/{weights}-search"), *records(f"gmoe/{weights}")):
        if record.spec["seed"] == 0:
            by_rate[record.spec["lr"]][_row(record)].append(record)
    return by_rate


def _mean(runs: list[RunRecord], part: str) -> float:
    return 100 * fmean(fmean(scores["accuracy"] for scores in run.stages[-1][part].values()) for run in runs)


TABLES: dict[str, Callable[[], list[str]]] = {"longer": partial(longer, "dinov2-shape"), "amazon": amazon}
TABLES["pacs-random"] = partial(pacs, "random")
for _weights in WEIGHTS:
    TABLES[f"search-{_weights}"] = partial(searched, _weights)
    TABLES[f"chosen-{_weights}"] = partial(chosen, _weights)
    TABLES[f"pacs-{_weights}"] = partial(pacs, _weights)
    TABLES[f"single-{_weights}"] = partial(single, _weights)
