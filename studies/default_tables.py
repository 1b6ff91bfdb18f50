"""Tables of docs/studies/default.md: the default settings against the first version, a searched rate and baselines.

Scores are means over the targets of a data set, times 100, per seed; paired differences of a data set
with more than five seeds are means over five blocks of seeds. The score of the default is that of the stack of the
tuned network with the simple baselines, whose weights come from source validation; no target has a part in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from holdfast.record import PACKED, RunRecord, load
from holdfast.stats.statistics import holm, interval, paired_t
from studies.default import DATASETS, ROWS, SEEDS
from studies.primary_tables import gap, or_none, source_score
from studies.tables import RESULTS, header

FOLDER = RESULTS / "default"
DEFAULT, NETWORK, SIMPLE = "default", "network", "baseline"  # rows that come from the runs of the default
AGAINST = {
    "first": "first version, tuned", "frozen": "first version, frozen", "searched": "searched rate",
    SIMPLE: "best simple baseline",
}  # fmt: skip
ABLATIONS = {
    "no-average": "average", "no-decay": "decay", "300-steps": "more steps", "128-tokens": "length of texts",
}  # fmt: skip
SINGLE = (NETWORK, "memory", "knn")
Scores = dict[str, dict[int, float]]  # row -> seed -> score


def packed_records(folder: Path = FOLDER) -> dict[str, dict[str, list[RunRecord]]]:
    """Return the packed records by data set and row."""
    paths = {name: {row: folder / "run" / name / f"{row}{PACKED}" for row in ROWS} for name in DATASETS}
    records = {
        name: {row: list(load(path)) for row, path in rows.items() if path.is_file()} for name, rows in paths.items()
    }
    return {name: rows for name, rows in records.items() if {"default", "first", "searched"} <= rows.keys()}


def kind_of(record: RunRecord) -> str:
    """Return the row of a record of the default: the stack, the network, or a simple baseline with its encoder."""
    method = record.spec["method"]
    if method in ("stack", "ensemble", "soup"):
        return DEFAULT if method == "stack" else method
    return NETWORK if method == "erm" else f"{method}, {record.spec['encoder']}"


def scores_of(name: str, rows: Mapping[str, Sequence[RunRecord]]) -> tuple[Scores, str]:
    """Return the scores of all rows of a data set, and the name of the best simple baseline, by its target scores."""
    metric = str(DATASETS[name].settings["metric"])
    groups: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, records in rows.items():
        for record in records:
            values = [100 * float(each[metric] or 0.0) for each in record.stages[-1]["test"].values()]
            groups[kind_of(record) if row == DEFAULT else row][int(record.spec["seed"])] += values
    scores = {row: _complete(seeds) for row, seeds in groups.items()}
    simple = [row for row in scores if ", " in row]
    best = max(simple, key=lambda row: fmean(scores[row].values()))
    return {**{row: seeds for row, seeds in scores.items() if row not in simple}, SIMPLE: scores[best]}, best


def _complete(seeds: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the mean over targets per seed, without seeds that lack targets."""
    targets = max(map(len, seeds.values()))
    return {seed: fmean(values) for seed, values in sorted(seeds.items()) if len(values) == targets}


def headroom(name: str, records: Sequence[RunRecord]) -> list[float]:
    """Return per seed the source-validation score minus the target score of the first version's settings."""
    metric = str(DATASETS[name].settings["metric"])
    gaps: dict[int, list[float]] = defaultdict(list)
    for record in records:
        outside = fmean(100 * float(each[metric] or 0.0) for each in record.stages[-1]["test"].values())
        gaps[int(record.spec["seed"])].append(source_score(record, metric) - outside)
    return [fmean(values) for _, values in sorted(gaps.items())]


def differences(scores: Scores, row: str, other: str) -> list[float]:
    """Return a row minus another per block of seeds that both have."""
    return list(_blocks(scores, row, other).values())


def _blocks(scores: Scores, row: str, other: str) -> dict[int, float]:
    """Return the mean difference per block; block i holds the seeds i, i + 5, i + 10, ..."""
    blocks: dict[int, list[float]] = defaultdict(list)
    for seed in sorted(scores.get(row, {}).keys() & scores.get(other, {}).keys()):
        blocks[seed % SEEDS].append(scores[row][seed] - scores[other][seed])
    return {block: fmean(values) for block, values in blocks.items()}


def average(every: Mapping[str, Scores], row: str, other: str) -> list[float]:
    """Return a row minus another per block, mean over data sets, for the blocks that all data sets have."""
    sets = [_blocks(each, row, other) for each in every.values() if row in each and other in each]
    blocks = sorted(set.intersection(*map(set, sets))) if sets else []
    return [fmean(values[block] for values in sets) for block in blocks]


def main_table(records: Mapping[str, Mapping[str, Sequence[RunRecord]]]) -> list[str]:
    """Return one line per data set: headroom, scores, and paired differences of the default."""
    opponents = AGAINST.values()
    lines = header("data", "seeds", "headroom", *opponents, "default", *(f"default - {name}" for name in opponents))
    for name, rows in records.items():
        scores, best = scores_of(name, rows)
        cells = [DATASETS[name].title, str(len(scores[DEFAULT])), gap(headroom(name, rows["first"]))]
        for row in (*AGAINST, DEFAULT):
            text = f"{fmean(scores[row].values()):.1f}" if row in scores else "-"
            cells.append(f"{text} ({best})" if row == SIMPLE else text)
        cells += [gap(differences(scores, DEFAULT, row)) if row in scores else "-" for row in AGAINST]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def average_table(records: Mapping[str, Mapping[str, Sequence[RunRecord]]]) -> list[str]:
    """Return one line per opponent: difference of the default, mean over data sets, with Holm's correction."""
    every = {name: scores_of(name, rows)[0] for name, rows in records.items()}
    gains = {row: average(every, DEFAULT, row) for row in AGAINST}
    ps = [paired_t(values, [0.0] * len(values)).p if len(values) > 1 else None for values in gains.values()]
    lines = header("default against", "data sets", "seeds", "difference", "p", "p, Holm")
    for (row, values), p, corrected in zip(gains.items(), ps, holm(ps), strict=True):
        if values:
            shown = ["-" if each is None else f"{each:.4f}" for each in (p, corrected)]
            cells = [AGAINST[row], sum(row in each for each in every.values()), len(values), gap(values), *shown]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def ablation_table(records: Mapping[str, Mapping[str, Sequence[RunRecord]]]) -> list[str]:
    """Return one line per data set: what the network loses without an ingredient."""
    names = ("stack", "search of the rate", *ABLATIONS.values())
    lines = header("data", "seeds", "network, default rate", *(f"gain by {name}" for name in names))
    for name, rows in records.items():
        scores, _ = scores_of(name, rows)
        if "no-search" not in scores:
            continue
        gains = [differences(scores, DEFAULT, NETWORK), differences(scores, NETWORK, "no-search")]
        gains += [differences(scores, "no-search", row) for row in ABLATIONS]
        cells = [DATASETS[name].title, str(len(scores["no-search"])), f"{fmean(scores['no-search'].values()):.1f}"]
        lines.append(f"| {' | '.join([*cells, *(gap(each) if each else '-' for each in gains)])} |")
    return lines


def combination_table(records: Mapping[str, Mapping[str, Sequence[RunRecord]]]) -> list[str]:
    """Return one line per data set: the stack against every single method, with Holm's correction over data sets."""
    every = {name: scores_of(name, rows)[0] for name, rows in records.items()}
    ps, cells = [], []
    for name, scores in every.items():
        single = {row: scores[row] for row in (*SINGLE, SIMPLE) if row in scores}
        best = max(single, key=lambda row: fmean(single[row].values()))
        values = differences(scores, DEFAULT, best)
        ps.append(paired_t(values, [0.0] * len(values)).p if len(values) > 1 else None)
        shown = [f"{fmean(scores[row].values()):.1f}" if row in scores else "-" for row in (*SINGLE, SIMPLE, DEFAULT)]
        cells.append([DATASETS[name].title, *shown, best, gap(values)])
    lines = header("data", *SINGLE, "best simple baseline", "stack", "best single method", "stack - best", "p, Holm")
    for each, p in zip(cells, holm(ps), strict=True):
        lines.append(f"| {' | '.join([*each, '-' if p is None else f'{p:.3f}'])} |")
    return lines


def significantly_worse(records: Mapping[str, Mapping[str, Sequence[RunRecord]]], other: str) -> list[str]:
    """Return the data sets on which the 95% interval of the default minus another row lies below zero."""
    worse = []
    for name, rows in records.items():
        bounds = interval(differences(scores_of(name, rows)[0], DEFAULT, other))
        if bounds is not None and bounds[1] < 0:
            worse.append(name)
    return worse


def _table(function: Callable[[Mapping[str, Mapping[str, Sequence[RunRecord]]]], list[str]]) -> Callable[[], list[str]]:
    return lambda: or_none(function(packed_records()))


TABLES = {
    "main": _table(main_table), "average": _table(average_table), "ablation": _table(ablation_table),
    "combination": _table(combination_table),
}  # fmt: skip
