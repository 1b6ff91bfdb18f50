"""The tables of HMA in docs/reproduction.md, made from the records in results/hma."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean

from holdfast.record import RunRecord, load
from tests.docs.paired import difference

RESULTS = Path(__file__).parents[2] / "results" / "hma"
PLAIN, NULL = "ERM", "PARAM, parameters alone"
# row -> (method, neck, what of it was changed)
PARTS = {
    PLAIN: ("erm", "none", {}),
    NULL: ("erm", "param", {}),
    "RMA, the queue": ("hma", "rma", {}),
    "ABD, batch-mates": ("hma", "abd", {}),
    "ABD+RMA": ("hma", "abd-rma", {}),
    "ABD+SYN": ("hma", "abd-syn", {}),
    "HMA": ("hma", "heterogeneous", {}),
    "HMA, predicted in batches": ("hma", "heterogeneous", {"context": "batch"}),
    "HMA, a queue of noise": ("hma", "heterogeneous", {"written": False}),
    "HMA, slots that never learn": ("hma", "heterogeneous", {"frozen": True}),
}
CHANGES = ("context", "written", "frozen")
Scores = dict[str, dict[str, dict[int, float]]]  # row -> column -> seed -> score


def _row(record: RunRecord) -> str:
    given = {key: value for key, value in record.spec["neck_args"].items() if key in CHANGES}
    said = (record.spec["method"], record.spec["neck"], given)
    (name,) = (name for name, row in PARTS.items() if row == said)
    return name


@cache
def _scores(folder: str, metric: str) -> Scores:
    found: Scores = defaultdict(lambda: defaultdict(dict))
    for record in load(RESULTS / folder):
        for target, told in record.stages[-1]["test"].items():
            found[_row(record)][target][record.spec["seed"]] = 100 * told[metric]
    return found


def _table(found: Scores, seeds: int) -> list[str]:
    """Every row must have every seed on every column; differences are those of the mean over columns."""
    columns = sorted(found[PLAIN])

    def means(row: str) -> list[float]:
        return [fmean(found[row][column][seed] for column in columns) for seed in range(seeds)]

    lines = [
        f"| row | {' | '.join(columns)} | mean | against ERM | against PARAM |",
        f"|---|{'---|' * (len(columns) + 3)}",
    ]
    for row in PARTS:
        by_column = [fmean(found[row][column][seed] for seed in range(seeds)) for column in columns]
        shown = " | ".join(f"{value:.1f}" for value in [*by_column, fmean(by_column)])
        pair = ["-" if row == other else difference(means(row), means(other)) for other in (PLAIN, NULL)]
        lines.append(f"| {row} | {shown} | {' | '.join(pair)} |")
    return lines


def amazon() -> list[str]:
    """HMA as a neck on MiniLM, one domain left out."""
    return _table(_scores("amazon", "macro_f1"), seeds=3)
