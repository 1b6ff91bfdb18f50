"""Tables of the MIL study (docs/studies/mil.md), computed from the records in results/mil."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from statistics import fmean, stdev
from typing import Any

from holdfast.record import RunRecord
from studies.tables import RESULTS, difference, header, match_row, records

SEEDS = 5
ERM, NULL, ORACLE = "ERM", "untrained memory", "oracle"
ROWS: dict[str, dict[str, Any]] = {
    ERM: {"method": "erm", "neck": "none", "in_domain": False},
    "+ memory": {"method": "erm", "frozen": False, "memory": True},
    NULL: {"method": "erm", "frozen": True, "same_share": True, "sharp": False},
    "untrained memory, share 0.5": {"method": "erm", "frozen": True, "same_share": False},
    "untrained memory, sharper read": {"method": "erm", "frozen": True, "sharp": True},
    "+ FFN": {"method": "erm", "neck": "ffn"},
    "invariance w/o memory": {"method": "dann"},
    "CORAL": {"method": "coral"},
    "IRM": {"method": "irm"},
    "MIL, published settings": {"method": "mil", "searched": False},
    "MIL, chosen settings": {"method": "mil", "searched": True, "sharp": False},
    "MIL, sharper read": {"method": "mil", "sharp": True},
    ORACLE: {"in_domain": True},
}
Runs = dict[tuple[str, int], RunRecord]  # (target, seed) -> record


def _facts(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a spec that separate the rows."""
    memory = spec["neck"].startswith("memory")
    return {
        "method": spec["method"],
        "neck": spec["neck"],
        "in_domain": spec["plan"] == "in-domain",
        "memory": memory,
        "frozen": memory and spec["neck_args"].get("frozen", False),
        "same_share": spec["neck_args"].get("share") == 0.2,  # the share of MIL's chosen settings
        "searched": "critic_lr" in spec["method_args"],
        "sharp": "temperature" in spec["neck_args"],
    }


@cache
def runs(study: str) -> dict[str, Runs]:
    """Return the records of a study and of its oracle by row."""
    by_row: dict[str, Runs] = defaultdict(dict)
    names = [name for name in (study, f"{study}-oracle") if (RESULTS / "mil" / f"{name}.jsonl.gz").exists()]
    for record in (record for name in names for record in records(f"mil/{name}")):
        row = match_row(ROWS, _facts(record.spec))
        for target in record.stages[-1]["test"]:
            by_row[row][target, record.spec["seed"]] = record
    return {row: by_row[row] for row in ROWS if row in by_row}


def _score(row: Runs, target: str, seed: int) -> float:
    return 100 * row[target, seed].stages[-1]["test"][target]["macro_f1"]


def _means(row: Runs) -> list[float]:
    """Return the mean over targets per seed."""
    targets = sorted({target for target, _ in row})
    return [fmean(_score(row, target, seed) for target in targets) for seed in sorted({seed for _, seed in row})]


def scores(study: str) -> list[str]:
    """Macro-F1 per target and row, with differences to ERM and to the untrained memory."""
    by_row = runs(study)
    targets = sorted({target for target, _ in by_row[ERM]})
    lines = header("row", *targets, "mean", "against ERM", "against the untrained memory")
    for name, row in by_row.items():
        cells = [fmean(_score(row, target, seed) for seed in range(SEEDS)) for target in targets]
        pairs = [
            "-" if name in (base, ORACLE) else difference(_means(row), _means(by_row[base])) for base in (ERM, NULL)
        ]
        lines.append(f"| {name} | {' | '.join(f'{c:.1f}' for c in [*cells, fmean(cells)])} | {' | '.join(pairs)} |")
    return lines


def distances(studies: tuple[str, ...] = ("amazon", "mnli")) -> list[str]:
    """A-distance of the target to its pooled sources: mean and standard deviation over targets and seeds."""
    lines = header("row", *studies)
    for row in ROWS:
        cells = []
        for study in studies:
            analyses = [record.analysis for record in runs(study).get(row, {}).values()]
            per_target = [a["a-distance"]["targets"].values() for a in analyses if "a-distance" in a]
            values = [distance["mean"] for targets in per_target for distance in targets]
            cells.append(f"{fmean(values):.2f} ± {stdev(values):.2f}, n {len(values)}" if values else "-")
        if any(cell != "-" for cell in cells):
            lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def searched(study: str, domains: int) -> list[str]:
    """Mean score of each searched configuration on folds of source domains, with the difference to ERM."""
    by_name: dict[str, dict[tuple[str, str, int], float]] = defaultdict(dict)
    for record in records(f"mil/{study}"):
        spec = record.spec
        settings = {**spec["method_args"], **{f"neck.{key}": value for key, value in spec["neck_args"].items()}}
        label = ", ".join(f"{key} {value}" for key, value in sorted(settings.items()))
        method = spec["method"] if spec["neck"] == "none" else f"{spec['neck']}+{spec['method']}"
        name = json.dumps((method, label, spec["steps"]))
        for target, score in record.stages[-1]["test"].items():
            by_name[name][record.episode, target, spec["seed"]] = 100 * score["macro_f1"]
    assert domains == len({target for scores in by_name.values() for _, target, _ in scores})
    lines = []
    for name, scores in by_name.items():
        method, label, steps = json.loads(name)
        baseline = by_name[json.dumps(("erm", "", steps))]
        shared = [key for key in scores if key in baseline]
        gap = fmean(scores[key] - baseline[key] for key in shared)
        cells = f"{steps} | {len(shared)} | {fmean(scores.values()):.1f} | {gap:+.2f}"
        lines.append((gap, f"| {method} | {label or '-'} | {cells} |"))
    ordered = [line for _, line in sorted(lines, key=lambda pair: (-pair[0], pair[1]))]
    return header("network and method", "settings", "steps", "folds", "macro-F1", "against ERM") + ordered


TABLES = {
    "amazon": lambda: scores("amazon"),
    "mnli": lambda: scores("mnli"),
    "amazon-cross": lambda: scores("amazon-cross"),
    "mnli-cross": lambda: scores("mnli-cross"),
    "distances": distances,
    "search-amazon": lambda: searched("search-amazon", 4),
    "search-mnli": lambda: searched("search-mnli", 5),
}
