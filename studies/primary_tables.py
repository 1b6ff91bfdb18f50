"""Decisions and tables of the analysis plan: chosen rates, engagement gate, headroom and paired differences."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from holdfast.record import LOWER_IS_BETTER, PACKED, RunRecord, load
from holdfast.stats.engagement import ENGAGED, percent
from holdfast.stats.statistics import holm, interval, paired_t
from studies.comparisons import COMPARISONS, Comparison
from studies.tables import RESULTS, header

FOLDER = RESULTS / "primary"
Records = Sequence[RunRecord]
Cells = dict[str, dict[str, dict[int, float]]]  # row -> data and target -> seed -> score times 100


def source_score(record: RunRecord, metric: str) -> float:
    """Return the source-validation score times 100 at the selected step: mean over domains, then over stages."""
    means = [fmean(float(scores[metric] or 0.0) for scores in stage["valid"].values()) for stage in record.stages]
    return 100 * fmean(means)


def choice_of(comparison: Comparison, records: Records) -> dict[str, Any]:
    """Return the rate per row with the best source-validation score, and the engagement of the system at its rate.

    Target scores are not read. A rate counts for a row only if all its runs are there. `notes` lists what needs
    attention: a rate at the edge of the grid, missing runs, or rows with different grids.
    """
    assert comparison.metric not in LOWER_IS_BETTER
    runs: dict[str, dict[float, list[RunRecord]]] = {row: defaultdict(list) for row in comparison.rows}
    for record in records:
        runs[comparison.row_of(record.spec)][float(record.spec["lr"])].append(record)
    episodes = comparison.search_episodes or comparison.episodes
    expected = len(comparison.datasets) * len(episodes) * comparison.search_seeds
    rows, notes = {}, []
    grid = sorted({rate for rates in runs.values() for rate in rates})
    for row, rates in runs.items():
        complete = {rate: group for rate, group in sorted(rates.items()) if len(group) == expected}
        if not complete:
            raise ValueError(
                f"{comparison.title}: row {row} has no rate with all {expected} runs; run the search again"
            )
        if list(complete) != grid:
            notes.append(f"{row} has complete runs at {_rates(complete)} only, the grid has {_rates(grid)}")
        scores = {rate: fmean(source_score(r, comparison.metric) for r in group) for rate, group in complete.items()}
        best = max(scores, key=lambda rate: scores[rate])
        if best in (grid[0], grid[-1]):
            notes.append(f"rate {best:g} of {row} is at the edge of the grid: extend it with --rates for all rows")
        rows[row] = {"rate": best, "scores": {f"{rate:g}": round(score, 3) for rate, score in scores.items()}}
    at_rate = runs[comparison.treated][rows[comparison.treated]["rate"]]
    share = engagement(comparison, at_rate)
    return {"rows": rows, "engagement": round(share, 4), "engaged": share >= ENGAGED, "notes": notes}


def _rates(rates: Mapping[float, Any] | Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def engagement(comparison: Comparison, records: Records) -> float:
    """Return the share of source-validation predictions that depend on the mechanism, mean over runs."""
    return fmean(float(record.engagement[comparison.mechanism]["share"]) for record in records)


class Results:
    """Scores of the final runs of one comparison at the chosen rates, times 100."""

    def __init__(self, comparison: Comparison, records: Records, choice: Mapping[str, Any]) -> None:
        self.comparison, self.choice = comparison, choice
        self.test: Cells = defaultdict(lambda: defaultdict(dict))
        self.valid: Cells = defaultdict(lambda: defaultdict(dict))
        self.shares: list[float] = []
        for record in records:
            row, seed = comparison.row_of(record.spec), int(record.spec["seed"])
            if float(record.spec["lr"]) != choice["rows"][row]["rate"]:
                continue
            run = f"{record.spec['data']}/{record.spec['fingerprint']}/{record.episode}"
            self.valid[row][run][seed] = source_score(record, comparison.metric)
            for target, scores in record.stages[-1]["test"].items():
                self.test[row][f"{run}/{target}"][seed] = 100 * float(scores[comparison.metric] or 0.0)
            if row == comparison.treated:
                self.shares.append(engagement(comparison, [record]))
        self.seeds = self._common_seeds()

    def _common_seeds(self) -> list[int]:
        """Return the seeds that every row has for every run and target."""
        columns = {(kind, column) for kind in (0, 1) for cells in self._cells(kind) for column in cells}
        sets = [
            set(self._cells(kind)[index].get(column, {}))
            for kind, column in columns
            for index in range(len(self.comparison.final_rows))
        ]
        return sorted(set.intersection(*sets)) if sets else []

    def _cells(self, kind: int) -> list[dict[str, dict[int, float]]]:
        return [(self.test, self.valid)[kind][row] for row in self.comparison.final_rows]

    def scores(self, row: str, cells: Cells | None = None) -> list[float]:
        """Return the mean over targets per common seed."""
        columns = (self.test if cells is None else cells)[row].values()
        return [fmean(column[seed] for column in columns) for seed in self.seeds]

    def headroom(self) -> list[float]:
        """Return per seed the baseline's score on validation rows of its training domains minus that on the targets."""
        row = self.comparison.baseline
        pairs = zip(self.scores(row, self.valid), self.scores(row), strict=True)
        return [inside - outside for inside, outside in pairs]

    def gain(self, row: str) -> list[float]:
        """Return per seed the score of the system minus that of another row."""
        pairs = zip(self.scores(self.comparison.treated), self.scores(row), strict=True)
        return [system - other for system, other in pairs]

    @property
    def verdict(self) -> str:
        """Whether the comparison counts for the test of its system: `yes`, or the gate that it fails."""
        bounds = interval(self.headroom())
        if self.comparison.unseen and (bounds is None or bounds[0] <= 0):
            return "no headroom"
        return "yes" if self.choice["engaged"] else "not engaged"


def results_of(
    comparisons: Mapping[str, Comparison], records: Mapping[str, Records], chosen: Mapping[str, Any]
) -> dict[str, Results]:
    """Return the comparisons with at least one complete seed."""
    named = [name for name in comparisons if records.get(name) and name in chosen]
    results = {name: Results(comparisons[name], records[name], chosen[name]) for name in named}
    return {name: result for name, result in results.items() if result.seeds}


def rate_table(comparisons: Mapping[str, Comparison], records: Mapping[str, Records]) -> list[str]:
    """Return one line per searched row: source-validation score per rate, and the engagement of the mechanism."""
    lines = header("system", "data", "row", "source validation by rate", "rate", "engaged")
    for name, each in comparisons.items():
        for row, entry in choice_of(each, records[name])["rows"].items() if records.get(name) else ():
            at_rate = [r for r in records[name] if each.row_of(r.spec) == row and float(r.spec["lr"]) == entry["rate"]]
            measured = all(each.mechanism in record.engagement for record in at_rate)
            share = percent(engagement(each, at_rate)) if measured else "-"
            scores = ", ".join(f"{rate}: {score:.1f}" for rate, score in entry["scores"].items())
            lines.append(f"| {each.system} | {each.title} | {row} | {scores} | {entry['rate']:g} | {share} |")
    return lines


def comparison_table(
    comparisons: Mapping[str, Comparison], records: Mapping[str, Records], chosen: Mapping[str, Any]
) -> list[str]:
    """Return one line per comparison: headroom, engagement, scores and paired differences with 95% intervals."""
    lines = header(
        "system", "data", "seeds", "headroom of ERM", "engaged", "ERM", "null control", "system", "system - null",
        "system - matched control", "system - ERM", "primary",
    )  # fmt: skip
    for result in results_of(comparisons, records, chosen).values():
        each = result.comparison
        scores = [f"{fmean(result.scores(row)):.1f}" for row in (each.baseline, each.null, each.treated)]
        gains = [gap(result.gain(row)) if row else "-" for row in (each.null, each.control, each.baseline)]
        cells = [
            each.system,
            each.title,
            str(len(result.seeds)),
            gap(result.headroom()),
            percent(fmean(result.shares)),
        ]
        lines.append(f"| {' | '.join([*cells, *scores, *gains, result.verdict])} |")
    return lines


def primary_table(
    comparisons: Mapping[str, Comparison], records: Mapping[str, Records], chosen: Mapping[str, Any]
) -> list[str]:
    """Return one line per system: its gain over the null control, mean over comparisons that pass both gates.

    Comparisons of a system are averaged per seed, over the seeds that all of them have; the p values of all systems are
    corrected together with Holm's method.
    """
    passed = by_system(comparisons, records, chosen)
    gains = {system: pooled(results, "null") for system, results in passed.items()}
    ps = [paired_t(gain, [0.0] * len(gain)).p if len(gain) > 1 else None for gain in gains.values()]
    lines = header("system", "comparisons", "seeds", "gain over the null control", "p", "p, Holm")
    for (system, gain), p, corrected in zip(gains.items(), ps, holm(ps), strict=True):
        shown = ["-" if value is None else f"{value:.3f}" for value in (p, corrected)]
        text = gap(gain) if gain else "not tested: no comparison passes both gates"
        lines.append(f"| {system} | {len(passed[system])} | {len(gain)} | {text} | {' | '.join(shown)} |")
    return lines


def by_system(
    comparisons: Mapping[str, Comparison], records: Mapping[str, Records], chosen: Mapping[str, Any]
) -> dict[str, list[Results]]:
    """Return the comparisons per system that pass both gates."""
    passed: dict[str, list[Results]] = defaultdict(list)
    for result in results_of(comparisons, records, chosen).values():
        passed[result.comparison.system] += [result] if result.verdict == "yes" else []
    return passed


def pooled(results: Sequence[Results], against: str) -> list[float]:
    """Return the gain over the rows with a role, `null` or `baseline`, per common seed, mean over comparisons."""
    if not results:
        return []
    gains = [dict(zip(each.seeds, each.gain(getattr(each.comparison, against)), strict=True)) for each in results]
    seeds = sorted(set.intersection(*map(set, gains)))
    return [fmean(gain[seed] for gain in gains) for seed in seeds]


def gap(values: Sequence[float]) -> str:
    """Format a mean with its 95% interval: `+1.20 (+0.31 to +2.09)`."""
    bounds = interval(values)
    around = "" if bounds is None else f" ({bounds[0]:+.2f} to {bounds[1]:+.2f})"
    return f"{fmean(values):+.2f}{around}"


def packed_inputs(folder: Path = FOLDER) -> tuple[dict[str, Comparison], dict[str, list[RunRecord]], dict[str, Any]]:
    """Return comparisons, packed records and choices of the repository."""
    path = folder / "chosen.json"
    chosen = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return dict(COMPARISONS), packed_records("final", folder), chosen


def packed_records(stage: str, folder: Path = FOLDER) -> dict[str, list[RunRecord]]:
    """Return the packed records of a stage by comparison."""
    paths = {name: folder / stage / f"{name}{PACKED}" for name in COMPARISONS}
    return {name: list(load(path)) for name, path in paths.items() if path.is_file()}


def or_none(lines: list[str]) -> list[str]:
    """Add a line to a table without rows."""
    return lines if len(lines) > 2 else [*lines, f"| no records {'| ' * lines[0].count(' | ')}|"]


TABLES = {
    "rates": lambda: or_none(rate_table(COMPARISONS, packed_records("search"))),
    "comparisons": lambda: or_none(comparison_table(*packed_inputs())),
    "primary": lambda: or_none(primary_table(*packed_inputs())),
}
