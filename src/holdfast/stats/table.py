"""Turn records into the rows of a table: one row per configuration, one column per target domain."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from holdfast.core.errors import check_known
from holdfast.defaults import FEW_DOMAINS
from holdfast.record import LOWER_IS_BETTER, RunRecord, Scores
from holdfast.stats.labels import (
    BASELINE,
    Groups,
    configuration,
    grouped,
    is_combined,
    is_plain,
    is_simple,
    natural_key,
)
from holdfast.stats.statistics import Cell, mean, summarise

SINGLE = "single-source"  # the plan whose columns name source and target
MOST_COLUMNS = 5  # targets of a table, where there are more than `FEW_DOMAINS`
T = TypeVar("T")
COSTS = ("seconds", "examples_per_second", "peak_memory_mb", "learning_parameters", "macs")


@dataclass(frozen=True, slots=True)
class Row:
    """Scores of one configuration over seeds."""

    label: str
    cells: dict[str, Cell]  # target -> scores over seeds; targets without a run are absent
    average: Cell | None  # mean over targets per seed, then over the seeds that have all targets
    worst: tuple[str, float] | None  # target and mean; None until all targets have a score
    source_cells: dict[str, Cell]  # validation scores of a single training domain
    paired: bool  # whether columns are pairs of source and target
    simple: bool  # whether it is a simple baseline
    combined: bool  # whether it combines runs of other rows
    baseline: bool  # whether other rows are compared with this one
    low: Cell | None  # 10th percentile over targets, of the worse end, where there are many; as the average
    sizes: dict[str, int]  # target -> tested examples, where they are known


@dataclass(frozen=True, slots=True)
class Table:
    """Records by label, and the scores of each label."""

    metric: str
    groups: dict[str, list[RunRecord]]
    rows: list[Row]


def tabulate(records: Iterable[RunRecord], metric: str) -> Table:
    """Return one row per configuration: records whose specs differ only in the seed."""
    groups = grouped(records)
    metrics = {m for group in groups.values() for r in group for s in r.stages for d in s["test"].values() for m in d}
    if metrics:
        check_known("metric", metric, metrics)
    comparable: dict[tuple[str, ...], list[RunRecord]] = {}
    for group in groups.values():
        comparable.setdefault(data_and_plan(group[0]), []).extend(group)
    scores = {key: _scores_by_column(members) for key, members in comparable.items()}
    targets = {key: _column_order(by_record) for key, by_record in scores.items()}
    references = {name for key in comparable for name in baselines(groups, key)}
    rows = []
    for name, group in groups.items():
        key = data_and_plan(group[0])
        rows.append(_row(name, group, scores[key], targets[key], metric, baseline=name in references))
    return Table(metric, groups, rows)


def _row(
    name: str, group: Sequence[RunRecord], scores: Mapping[str, Mapping[str, Scores]], targets: Sequence[str],
    metric: str, *, baseline: bool,
) -> Row:  # fmt: skip
    """Summarise the scores of one configuration; `scores` has those of each record per target."""
    by_seed: dict[Any, dict[str, float]] = {}  # seed -> target -> score
    sizes: dict[str, int] = {}
    for record in group:
        for target, values in scores[record.id].items():
            if (value := values.get(metric)) is not None:
                by_seed.setdefault(record.spec.get("seed"), {})[target] = float(value)
        sizes |= {c: max(n, sizes.get(c, 0)) for c, n in _tested(record, scores[record.id]).items()}
    values = {target: [s[target] for s in by_seed.values() if target in s] for target in targets}
    cells = {target: summarise(of_seeds) for target, of_seeds in values.items() if of_seeds}
    complete = [list(s.values()) for s in by_seed.values() if len(s) == len(targets)]
    average = summarise([math.fsum(s) / len(s) for s in complete]) if complete else None
    means = {target: cell.mean for target, cell in cells.items()}
    lower = metric in LOWER_IS_BETTER
    worst = None
    if means and len(means) == len(targets):
        worst = (max if lower else min)(means.items(), key=lambda pair: pair[1])
    low = None
    if complete and has_many(targets):
        low = summarise([float(np.quantile(s, 0.9 if lower else 0.1)) for s in complete])
    return Row(
        name, cells, average, worst, _source_cells(group, metric), paired=group[0].spec.get("plan") == SINGLE,
        simple=is_simple(group[0]), combined=is_combined(group[0]), baseline=baseline, low=low, sizes=sizes,
    )  # fmt: skip


def _tested(record: RunRecord, scores: Mapping[str, Scores]) -> dict[str, int]:
    """Map column to the number of tested examples; `scores` are those of the record per column."""
    sizes = record.stages[-1].get("sizes", {}).get("test", {}) if record.stages else {}
    names = {column: column.rpartition(">")[2] if column not in sizes else column for column in scores}
    return {column: int(sizes[name]) for column, name in names.items() if name in sizes}


def baselines(groups: Groups, key: tuple[str, ...]) -> dict[str, RunRecord]:
    """Return the baselines for one data set and plan: plain ERM, or ERM with other networks if it was not run."""
    first = {name: group[0] for name, group in groups.items() if data_and_plan(group[0]) == key}
    candidates = {name: record for name, record in first.items() if record.spec["method"] == BASELINE}
    return {name: record for name, record in candidates.items() if is_plain(record)} or candidates


def data_and_plan(record: RunRecord) -> tuple[str, ...]:
    """Return data, plan and rows; averages are comparable only between records that share them."""
    return *experiment(record), str(record.spec.get("rows") or 0)


def experiment(record: RunRecord) -> tuple[str, ...]:
    """Return data and plan; records of one comparison share them."""
    return tuple(str(record.spec.get(k)) for k in ("data", "fingerprint", "plan"))


def _source_cells(group: Sequence[RunRecord], metric: str) -> dict[str, Cell]:
    """Return validation scores of the training domain for single-source runs; empty for other plans."""
    scores: dict[str, list[float]] = {}
    for stage in (r.stages[-1] for r in group if r.spec.get("plan") == SINGLE and r.stages):
        for domain in stage["train"]:
            if (value := stage["valid"].get(domain, {}).get(metric)) is not None:
                scores.setdefault(f"{domain}>{domain} (valid)", []).append(float(value))
    return {name: summarise(scores[name]) for name in sorted(scores, key=natural_key)}


def _scores_by_column(records: Sequence[RunRecord]) -> dict[str, dict[str, Scores]]:
    """Map record id to column to scores on the test domains of the last stage."""
    last = {r.id: r.stages[-1] if r.stages else {"test": {}} for r in records}
    names = {r.id: (configuration(r), r.spec.get("seed")) for r in records}
    runs = Counter((name, d) for id, name in names.items() for d in last[id]["test"])
    ambiguous = any(count > 1 for count in runs.values())  # several episodes score one domain
    scores = {}
    for r in records:
        prefix = ""
        if r.spec.get("plan") == SINGLE:
            prefix = "+".join(last[r.id].get("train", [])) + ">"
        elif ambiguous:
            prefix = f"{r.episode}>"
        test = last[r.id]["test"]
        scores[r.id] = {prefix + d: test[d] for d in (stream_domains(r) if len(r.stages) > 1 else test)}
    return scores


def final_scores(group: Iterable[RunRecord], metric: str) -> dict[tuple[Any, str, str], float]:
    """Map (seed, episode, domain) to the score of one configuration after the last stage."""
    return {
        (record.spec.get("seed"), record.episode, domain): float(scores[metric])
        for record in group
        for domain, scores in (record.stages[-1]["test"] if record.stages else {}).items()
        if scores.get(metric) is not None
    }


def _column_order(scores: Mapping[str, Mapping[str, Scores]]) -> list[str]:
    """Return all columns: in the order of a record that has them all (a stream), else by name."""
    names = {column for columns in scores.values() for column in columns}
    complete = (list(columns) for columns in scores.values() if len(columns) == len(names))
    return next(complete, None) or sorted(names, key=natural_key)


def columns(rows: Iterable[Row]) -> list[str]:
    """Return the targets of all rows, in the order of the row with the most targets."""
    longest_first = sorted(rows, key=lambda row: -len(row.cells))
    return list(dict.fromkeys(column for row in longest_first for column in row.cells))


def shown_columns(rows: Sequence[Row]) -> list[str]:
    """Return the targets that a table shows: all, or of many the largest in their order."""
    targets = columns(rows)
    if not has_many(targets):
        return targets
    sizes = {target: max((row.sizes.get(target, 0) for row in rows), default=0) for target in targets}
    largest = set(sorted(targets, key=lambda target: -sizes[target])[:MOST_COLUMNS])
    return [target for target in targets if target in largest]


def has_many(targets: Sequence[str]) -> bool:
    """Whether a table shows only some of the domains; a column may name an episode or source first."""
    return len({target.rpartition(">")[2] for target in targets}) > FEW_DOMAINS


def low_name(metric: str) -> str:
    """Return the name of the percentile over targets."""
    return "90th percentile" if metric in LOWER_IS_BETTER else "10th percentile"


def source_columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns with validation scores of single training domains."""
    return sorted({column for row in rows for column in row.source_cells}, key=natural_key)


def best(means: Mapping[T, float], metric: str) -> set[T]:
    """Return the keys with the best value of one column, ties included; empty for a single row."""
    finite = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if len(means) < 2 or not finite:
        return set()
    top = (min if metric in LOWER_IS_BETTER else max)(finite.values())
    return {name for name, mean in finite.items() if math.isclose(mean, top, rel_tol=1e-9, abs_tol=1e-12)}


def flat_table(table: Table) -> list[dict[str, Any]]:
    """Return the table for `--json`: method, target, metric, mean, stderr, n; average and worst come last.

    It has all targets, and of many also their 10th percentile.
    """
    entries: list[dict[str, Any]] = []
    for row in table.rows:
        cells = [*row.cells.items(), *row.source_cells.items()]
        if row.average is not None:
            cells.append(("average", row.average))
        if row.low is not None:
            cells.append((low_name(table.metric), row.low))
        if row.worst is not None:
            cells.append(("worst", row.cells[row.worst[0]]))
        for target, cell in cells:
            entry = {"method": row.label, "target": target, "metric": table.metric}
            entries.append(entry | {"mean": _finite(cell.mean), "stderr": _finite(cell.stderr), "n": cell.n})
    return entries


def stream_domains(record: RunRecord) -> list[str]:
    """Return the tested domains of a stream in the order of learning, then those never learned."""
    tested = {d for stage in record.stages for d in stage["test"]}
    learned = [d for stage in record.stages for d in stage["train"]]
    return list(dict.fromkeys([*(d for d in learned if d in tested), *sorted(tested, key=natural_key)]))


def score_matrix(record: RunRecord, metric: str) -> list[list[float]]:
    """Return R[i][j], the score on domain j of `stream_domains` after stage i; nan if it was not scored."""
    domains = stream_domains(record)
    cells = [[stage["test"].get(d, {}).get(metric) for d in domains] for stage in record.stages]
    return [[math.nan if value is None else float(value) for value in line] for line in cells]


def costs(groups: Groups) -> list[dict[str, Any]]:
    """Return the cost per configuration: time and speed as means over runs, the other values as maxima."""
    entries = []
    for name, group in groups.items():
        entry: dict[str, Any] = {"method": name}
        for key in COSTS:
            values = [r.cost[key] for r in group if r.cost.get(key) is not None]
            entry[key] = mean(values) if key in ("seconds", "examples_per_second") else max(values, default=None)
        entries.append(entry | {"runs": len(group)})
    return entries


def _finite(value: float | None) -> float | None:
    """Return None for nan and infinity, which JSON cannot represent."""
    return value if value is not None and math.isfinite(value) else None
