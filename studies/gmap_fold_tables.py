"""Tables of G-MAP with folds, masked words and shorter pretraining (docs/studies/gmap.md), from results/primary."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.special import stdtr, stdtrit

from holdfast.record import PACKED, RunRecord, load
from holdfast.stats.statistics import summarise
from studies.comparisons import COMPARISONS, Comparison
from studies.gmap_data import TASKS
from studies.gmap_folds import ENCODERS, LENGTHS, SHORT, dose_comparisons, masked_comparisons, primary_name
from studies.primary_tables import or_none
from studies.tables import RESULTS, difference, header

FOLDER = RESULTS / "primary"
FOLDS = 5
Scores = dict[str, dict[int, RunRecord]]  # row -> seed -> record


def _runs(stage: str, name: str, comparison: Comparison, folder: Path, rates: dict[str, float] | None = None) -> Scores:
    """Return the packed records of a comparison by row and seed, for seeds that all rows have; empty without any."""
    path, by_row = folder / stage / f"{name}{PACKED}", defaultdict[str, dict[int, RunRecord]](dict)
    for record in load(path) if path.is_file() else ():
        row = comparison.row_of(record.spec)
        if rates is None or math.isclose(rates[row], record.spec["lr"]):
            by_row[row][record.spec["seed"]] = record
    if set(by_row) != set(comparison.rows):
        return {}
    seeds = sorted(set.intersection(*(set(runs) for runs in by_row.values())))
    return {row: {seed: by_row[row][seed] for seed in seeds} for row in comparison.rows}


def _scores(runs: Iterable[RunRecord], factor: float = 100.0) -> list[float]:
    values = []
    for record in runs:
        (test,) = record.stages[-1]["test"].values()
        values.append(factor * float(test[record.spec["metric"]]))
    return values


def corrected(a: Sequence[float], b: Sequence[float], folds: int = FOLDS) -> str:
    """Format a difference with an interval that accounts for training sets that overlap (Nadeau & Bengio, 2003).

    The variance of the mean of n differences is s^2 (1 / n + 1 / (folds - 1)) instead of s^2 / n.
    """
    cell = summarise([x - y for x, y in zip(a, b, strict=True)])
    assert cell.stdev is not None
    error = cell.stdev * math.sqrt(1 / cell.n + 1 / (folds - 1))
    if not error:
        return f"{cell.mean:+.2f}"
    half = error * float(stdtrit(cell.n - 1, 0.975))
    p = 2 * float(stdtr(cell.n - 1, -abs(cell.mean) / error))
    return f"{cell.mean:+.2f} ({cell.mean - half:+.2f} to {cell.mean + half:+.2f}), p {p:.2f}"


def _chosen(folder: Path) -> dict[str, Any]:
    path = folder / "chosen.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _primary(encoder: str, task: str, folder: Path) -> Scores:
    name, chosen = primary_name(encoder, task), _chosen(folder)
    if name not in chosen:
        return {}
    rates = {row: float(entry["rate"]) for row, entry in chosen[name]["rows"].items()}
    return _runs("final", name, COMPARISONS[name], folder, rates)


def _share(runs: Iterable[RunRecord]) -> str:
    return f"{100 * fmean(record.engagement['general']['share'] for record in runs):.1f}%"


def folds(folder: Path = FOLDER) -> list[str]:
    """Rows `dapt`, `own-copy` and `gmap` with five folds, and paired differences with plain and corrected intervals."""
    names = ("data and encoder", "runs", "DAPT", "own copy", "G-MAP", "engaged", "engaged, own copy")
    lines = header(*names, "over own copy", "corrected", "over DAPT", "corrected")
    for encoder in ENCODERS:
        for task in TASKS.values():
            runs = _primary(encoder, task, folder)
            if not runs:
                continue
            scores = {row: _scores(records.values()) for row, records in runs.items()}
            means = [f"{fmean(scores[row]):.1f}" for row in ("dapt", "own-copy", "gmap")]
            shares = [_share(runs[row].values()) for row in ("gmap", "own-copy")]
            gains = [
                compare(scores["gmap"], scores[row])
                for row in ("own-copy", "dapt")
                for compare in (difference, corrected)
            ]
            cells = [f"{task}, {encoder}", str(len(scores["gmap"])), *means, *shares, *gains]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def dose(folder: Path = FOLDER) -> list[str]:
    """Gains by steps of domain pretraining, on the folds of one partition; the longest is the primary comparison."""
    lines = header("data and encoder", "steps", "DAPT", "own copy", "G-MAP", "over own copy", "over DAPT")
    for encoder in ENCODERS:
        shorter = dose_comparisons(encoder, COMPARISONS)
        for task in TASKS.values():
            for steps in (0, *LENGTHS):
                name = f"gmap-dose-{encoder}-{task}-{steps}"
                if name in shorter:
                    runs = _runs("dose", name, shorter[name], folder)
                else:
                    runs = _first_folds(encoder, task, folder)
                if not runs:
                    continue
                scores = {row: _scores(records.values()) for row, records in runs.items()}
                means = [_mean(scores.get(row)) for row in ("dapt", "own-copy", "gmap")]
                others = [scores.get(row) for row in ("own-copy", "dapt")]
                gains = ["-" if other is None else difference(scores["gmap"], other) for other in others]
                lines.append(f"| {' | '.join([f'{task}, {encoder}', str(steps), *means, *gains])} |")
    return lines


def _mean(scores: Sequence[float] | None) -> str:
    return "-" if scores is None else f"{fmean(scores):.1f}"


def _first_folds(encoder: str, task: str, folder: Path) -> Scores:
    """Return the primary runs on the partition that the shorter pretraining has."""
    runs = _primary(encoder, task, folder)
    return {row: {seed: record for seed, record in of.items() if seed < FOLDS} for row, of in runs.items()}


def masked(folder: Path = FOLDER) -> list[str]:
    """Loss per masked word on held-out segments after the same number of steps with different memories."""
    rows = {"none": "no memory", "own-copy": "own copy", "random": "random network", "general": "general model"}
    against = {"none": "no memory", "own-copy": "own copy"}
    lines = header(
        "corpus and encoder", "seeds", *rows.values(), "engaged", *(f"general - {name}" for name in against.values())
    )
    for encoder in ENCODERS:
        for name, comparison in masked_comparisons(encoder).items():
            runs = _runs("masked", name, comparison, folder)
            if not runs:
                continue
            losses = {row: _scores(records.values(), 1.0) for row, records in runs.items()}
            cells = [f"{fmean(losses[row]):.3f}" for row in rows]
            gains = [difference(losses["general"], losses[row], 3) for row in against]
            corpus = name.rpartition("-")[2]
            line = [f"{corpus}, {encoder}", str(len(losses["none"])), *cells, _share(runs["general"].values()), *gains]
            lines.append(f"| {' | '.join(line)} |")
    return lines


def domain_models(folder: Path = FOLDER) -> list[str]:
    """Loss per masked word of the domain models on held-out segments, before and after pretraining."""
    lines = header("corpus and encoder", "before", *(f"{steps} steps" for steps in LENGTHS))
    for encoder in ENCODERS:
        path = folder / "pretraining" / f"gmap-{encoder}{PACKED}"
        records = {(r.spec["data"], r.spec["steps"]): r for r in load(path)} if path.is_file() else {}
        for name in TASKS if records else ():
            trainings = [records.get((name, steps)) for steps in LENGTHS]
            after = [f"{record.stages[-1]['test'][name]['nll']:.2f}" if record else "-" for record in trainings]
            before = next(f"{record.analysis['before'][name]['nll']:.2f}" for record in trainings if record)
            lines.append(f"| {SHORT[name]}, {encoder} | {before} | {' | '.join(after)} |")
    return lines


_ALL = {"folds": folds, "dose": dose, "masked": masked, "domain-models": domain_models}
TABLES = {name: lambda folder=FOLDER, table=table: or_none(table(folder)) for name, table in _ALL.items()}
