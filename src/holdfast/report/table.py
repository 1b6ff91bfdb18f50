"""From records to the rows of a table: one row a configuration, one column a target domain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core.errors import unknown
from holdfast.record import LOWER_IS_BETTER, RunRecord, Scores
from holdfast.report.labels import BASELINE, configuration, grouped, is_plain, natural
from holdfast.report.statistics import Cell, summarise

SINGLE = "single-source"  # the plan whose columns name the domain that trained, too
COSTS = ("seconds", "examples_per_second", "peak_memory_mb", "learning_parameters", "macs")

Found = dict[Any, dict[str, float]]  # seed -> column -> value


@dataclass(frozen=True, slots=True)
class Row:
    """A configuration's scores: over seeds for each target, for their average, and where it is worst."""

    label: str
    cells: dict[str, Cell]  # target -> scores over seeds; a target without a run is absent
    average: Cell | None  # mean over targets for each seed, then over the seeds that have all targets
    worst: tuple[str, float] | None  # target and mean, once all targets are there
    own: dict[str, Cell] = field(default_factory=dict)  # of a domain that trained alone, by its validation rows
    paired: bool = False  # whether its columns are pairs of source and target
    baseline: bool = False  # whether others are compared with it


def rows(records: Iterable[RunRecord], metric: str) -> list[Row]:
    """One row for each configuration: records whose specs are equal but for the seed."""
    groups = grouped(records)
    everything = [r for group in groups.values() for r in group]
    known = {m for r in everything for s in r.stages for scores in s["test"].values() for m in scores}
    if known and metric not in known:
        raise unknown("metric", metric, known)
    places: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in everything:
        places.setdefault(data_and_plan(record), []).append(record)
    reached = {place: _reached(inside) for place, inside in places.items()}
    needed = {place: _ordered(found) for place, found in reached.items()}
    made = []
    for name, group in groups.items():
        place = data_and_plan(group[0])
        by_seed: Found = {}
        for record in group:
            for column, scores in reached[place][record.id].items():
                value = scores.get(metric)
                if value is not None:
                    by_seed.setdefault(record.spec.get("seed"), {})[column] = float(value)
        row = _row(name, by_seed, needed[place], metric)
        first, paired = name in baselines(groups, place), group[0].spec.get("plan") == SINGLE
        made.append(replace(row, own=_own(group, metric), paired=paired, baseline=first))
    return made


def baselines(groups: Mapping[str, Sequence[RunRecord]], place: tuple[str, ...]) -> dict[str, RunRecord]:
    """What others on this data and plan are compared with: the plain baseline, or where none was run its networks."""
    rule = {
        name: group[0]
        for name, group in groups.items()
        if group[0].spec["method"] == BASELINE and data_and_plan(group[0]) == place
    }
    return {name: record for name, record in rule.items() if is_plain(record)} or rule


def _row(name: str, by_seed: Found, needed: Sequence[str], metric: str) -> Row:
    cells = {}
    for column in needed:
        values = [found[column] for found in by_seed.values() if column in found]
        if values:
            cells[column] = summarise(values)
    whole = [math.fsum(f.values()) / len(f) for f in by_seed.values() if len(f) == len(needed)]
    means = {column: cell.mean for column, cell in cells.items()}
    pick = max if metric in LOWER_IS_BETTER else min
    done = bool(means) and len(means) == len(needed)
    worst = pick(means.items(), key=lambda pair: pair[1]) if done else None
    return Row(name, cells, summarise(whole) if whole else None, worst)


def _own(group: Sequence[RunRecord], metric: str) -> dict[str, Cell]:
    """Scores inside the source, which no average counts; there are none where several domains train."""
    found: dict[str, list[float]] = {}
    for record in group:
        if record.spec.get("plan") != SINGLE or not record.stages:
            continue
        stage = record.stages[-1]
        for domain in stage["train"]:
            value = stage["valid"].get(domain, {}).get(metric)
            if value is not None:
                found.setdefault(f"{domain}>{domain} (valid)", []).append(float(value))
    return {name: summarise(found[name]) for name in sorted(found, key=natural)}


def data_and_plan(record: RunRecord) -> tuple[str, ...]:
    """Data and plan: only records that share them have the same targets, so only their averages compare."""
    return tuple(str(record.spec.get(k)) for k in ("data", "fingerprint", "plan"))


def _reached(records: Sequence[RunRecord]) -> dict[str, dict[str, Scores]]:
    """Record id -> column -> scores: the test domains of the last stage."""
    last = {r.id: r.stages[-1] if r.stages else {"test": {}} for r in records}
    runs = Counter((configuration(r), r.spec.get("seed"), d) for r in records for d in last[r.id]["test"])
    crossed = any(count > 1 for count in runs.values())  # several episodes score one domain
    found = {}
    for r in records:
        before = ""
        if r.spec.get("plan") == SINGLE:
            before = "+".join(last[r.id].get("train", [])) + ">"
        elif crossed:
            before = f"{r.episode}>"
        test = last[r.id]["test"]
        found[r.id] = {before + d: test[d] for d in (stream_domains(r) if len(r.stages) > 1 else test)}
    return found


def _ordered(found: Mapping[str, Mapping[str, Scores]]) -> list[str]:
    """All columns: by name, unless one record already has them all, in the order of its stream."""
    names = {column for scores in found.values() for column in scores}
    for scores in found.values():
        if len(scores) == len(names):
            return list(scores)
    return sorted(names, key=natural)


def columns(rows: Iterable[Row]) -> list[str]:
    """The targets of all rows, in the order of the fullest row."""
    fullest_first = sorted(rows, key=lambda row: -len(row.cells))
    return list(dict.fromkeys(column for row in fullest_first for column in row.cells))


def source_columns(rows: Iterable[Row]) -> list[str]:
    """Where one domain trained alone, its own column; none elsewhere."""
    return sorted({column for row in rows for column in row.own}, key=natural)


def best(means: Mapping[str, float], metric: str) -> set[str]:
    """The names with the best value of one column, ties included; nobody is best alone."""
    finite = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if len(means) < 2 or not finite:
        return set()
    top = (min if metric in LOWER_IS_BETTER else max)(finite.values())
    return {name for name, mean in finite.items() if math.isclose(mean, top, rel_tol=1e-9, abs_tol=1e-12)}


def flat_table(records: Iterable[RunRecord], metric: str) -> list[dict[str, Any]]:
    """The table for machines: method, target, metric, mean, stderr, n; average and worst come last."""
    found: list[dict[str, Any]] = []
    for row in rows(records, metric):
        cells = [*row.cells.items(), *row.own.items()]
        if row.average is not None:
            cells.append(("average", row.average))
        if row.worst is not None:
            cells.append(("worst", row.cells[row.worst[0]]))
        for target, cell in cells:
            entry = {"method": row.label, "target": target, "metric": metric}
            found.append(entry | {"mean": _finite(cell.mean), "stderr": _finite(cell.stderr), "n": cell.n})
    return found


def stream_domains(record: RunRecord) -> list[str]:
    """The tested domains of a stream: as they were learnt, then those never learnt."""
    tested = {d for stage in record.stages for d in stage["test"]}
    learnt = [d for stage in record.stages for d in stage["train"]]
    return list(dict.fromkeys([*(d for d in learnt if d in tested), *sorted(tested, key=natural)]))


def score_matrix(record: RunRecord, metric: str) -> list[list[float]]:
    """R[i][j]: the score on domain j of `stream_domains` after stage i; nan where it was not scored."""
    domains = stream_domains(record)
    cells = [[stage["test"].get(d, {}).get(metric) for d in domains] for stage in record.stages]
    return [[math.nan if value is None else float(value) for value in line] for line in cells]


def costs(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """What each configuration took: time and speed as means per run, memory as the largest peak."""
    found = []
    for name, group in grouped(records).items():
        spent = {k: [r.cost[k] for r in group if r.cost.get(k) is not None] for k in COSTS}
        entry: dict[str, Any] = {"method": name}
        for key, values in spent.items():
            if key in ("seconds", "examples_per_second"):
                entry[key] = math.fsum(values) / len(values) if values else None
            else:
                entry[key] = max(values, default=None)
        found.append(entry | {"runs": len(group)})
    return found


def _finite(value: float | None) -> float | None:
    """JSON has no nan: a run that diverged has no mean to give."""
    return value if value is not None and math.isfinite(value) else None
