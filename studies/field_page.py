"""Tables of docs/studies/field.md, from the records of the field trials.

Verdicts are computed here, so that the records hold measurements only. Differences are paired over domains and seeds
and positive if the choice of `compare` is better. The best simple baseline is the one with the best average on the
targets, which favours it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from holdfast.record import LOWER_IS_BETTER
from holdfast.stats.statistics import interval
from studies.field import BUDGETS, RESULTS_FIELD, SKLEARN, TRIALS, read_scores, read_trials
from studies.field_sets import SETS
from studies.tables import header

TOLERANCE = 1.05  # of the limit
NONE = "no trial has been recorded"
NAMES = {"accuracy": "accuracy", "macro_f1": "macro-F1", "rmse": "RMSE"}
PERCENT = ("accuracy", "macro_f1", "balanced_accuracy", "mcc")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """Mean paired difference, positive if the choice is better, with its 95% interval if there are two pairs."""

    mean: float
    bounds: tuple[float, float] | None

    @property
    def worse(self) -> bool:
        return self.bounds is not None and self.bounds[1] < 0

    @property
    def better(self) -> bool:
        return self.bounds is not None and self.bounds[0] > 0

    def shown(self, metric: str) -> str:
        """Format the difference in points for shares, otherwise in the unit of the metric."""
        factor = 100 if metric in PERCENT else 1
        around = "" if self.bounds is None else " ({:+.2f} to {:+.2f})".format(*(factor * b for b in self.bounds))
        return f"{factor * self.mean:+.2f}{around}"


def paired(metric: str, ours: Mapping[str, Mapping[str, float]], other: Mapping[str, Any]) -> Difference | None:
    """Compare scores per domain and seed with those of another method, or with one score per domain.

    Methods without common seeds, such as an average over seeds, are compared by their means per domain.
    """
    sign = -1 if metric in LOWER_IS_BETTER else 1
    gaps: list[float] = []
    for domain in sorted(ours.keys() & other.keys()):
        seeds, theirs = ours[domain], other[domain]
        if isinstance(theirs, float | int):
            gaps += [sign * (value - theirs) for value in seeds.values()]
        elif seeds.keys() == theirs.keys():
            gaps += [sign * (seeds[seed] - theirs[seed]) for seed in seeds]
        else:
            gaps.append(sign * (fmean(seeds.values()) - fmean(theirs.values())))
    return Difference(fmean(gaps), interval(gaps)) if gaps else None


def best_simple(trial: Record) -> str | None:
    """Return the simple baseline with the best average."""
    best = min if trial["metric"] in LOWER_IS_BETTER else max
    return best(trial["simple"], key=lambda name: trial["averages"][name], default=None)


def against_simple(trial: Record) -> Difference | None:
    name, ours = best_simple(trial), trial["scores"].get(trial["choice"])
    return None if name is None or ours is None else paired(trial["metric"], ours, trial["scores"][name])


def against_sklearn(trial: Record, sklearn: Mapping[str, Any]) -> Difference | None:
    """Compare the choice with scikit-learn; None without scores of the same metric."""
    ours, known = trial["scores"].get(trial["choice"]), sklearn.get(trial["set"], {}).get("scores", {})
    theirs = {name: values[trial["metric"]] for name, values in known.items() if trial["metric"] in values}
    return None if ours is None else paired(trial["metric"], ours, theirs)


def is_failed(trial: Record) -> bool:
    return trial["code"] != 0 or trial["choice"] is None


def is_late(trial: Record) -> bool:
    return trial["limit"] is not None and trial["seconds"] > TOLERANCE * trial["limit"]


def verdicts(trial: Record, sklearn: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a trial; empty if nothing is."""
    late = ["late"] if is_late(trial) else []
    if is_failed(trial):
        return ["failed", *late]
    simple, other = against_simple(trial), against_sklearn(trial, sklearn)
    read_as = "numbers" if trial["task"] == "regress" else "classes"
    expected = "numbers" if SETS[trial["set"]].numbers else "classes"
    return [
        *late,
        *(["no erm"] if trial["erm_seconds"] is None else []),
        *([f"{expected} read as {read_as}"] if expected != read_as else []),
        *([f"worse than {best_simple(trial)}"] if simple is not None and simple.worse else []),
        *(["worse than scikit-learn"] if other is not None and other.worse else []),
        *([f"{len(trial['failed'])} runs failed"] if trial["failed"] else []),
    ]


def condition(trial: Record) -> tuple[str, str, str]:
    """Return device, budget and load of a trial."""
    about = trial["machine"]
    device = f"{about.get('device', trial['device'] or 'unknown')}, {about['cores']} cores"
    return device, trial["budget"], "busy" if trial["busy"] else "idle"


def _order(trial: Record) -> tuple[Any, ...]:
    device, budget, load = condition(trial)
    return device, load == "busy", BUDGETS.index(budget) if budget in BUDGETS else len(BUDGETS), budget, trial["set"]


def summary_table(folder: Path = RESULTS_FIELD) -> list[str]:
    """Return one line per device, budget and load."""
    trials, sklearn = sorted(read_trials(folder / TRIALS), key=_order), read_scores(folder / SKLEARN)
    lines = header(
        "device", "budget", "machine", "trials", "failed", "late", "no erm", "worse than a baseline",
        "worse than scikit-learn", "better than scikit-learn", "median share of the limit",
    )  # fmt: skip
    for key in dict.fromkeys(map(condition, trials)):
        mine = [trial for trial in trials if condition(trial) == key]
        ended = [trial for trial in mine if not is_failed(trial)]
        simple = [each for each in map(against_simple, ended) if each is not None]
        other = [each for trial in ended if (each := against_sklearn(trial, sklearn)) is not None]
        shares = [trial["seconds"] / trial["limit"] for trial in mine if trial["limit"]]
        counts = [
            len(mine), len(mine) - len(ended), sum(map(is_late, mine)),
            sum(trial["erm_seconds"] is None for trial in mine),
            sum(each.worse for each in simple), sum(each.worse for each in other), sum(each.better for each in other),
        ]  # fmt: skip
        share = f"{100 * median(shares):.0f}%" if shares else "-"
        lines.append(f"| {' | '.join([*key, *map(str, counts), share])} |")
    return lines if trials else [*lines, f"| {NONE} |{' |' * 10}"]


def command_table(folder: Path = RESULTS_FIELD) -> list[str]:
    """Return one line per command that follows a comparison."""
    after = [(trial["set"], trial["after"]) for trial in read_trials(folder / TRIALS) if trial.get("after")]
    lines = header("command", "trials", "failed", "median seconds", "errors")
    for name in dict.fromkeys(name for _, commands in after for name in commands):
        mine = [(data, commands[name]) for data, commands in after if name in commands]
        failed = [(data, each) for data, each in mine if each["code"] != 0 or each["error"]]
        errors = "; ".join(f"{data}: {cell(each['error'])}" for data, each in failed) or "-"
        seconds = median(each["seconds"] for _, each in mine)
        lines.append(f"| {name} | {len(mine)} | {len(failed)} | {seconds:.0f} | {errors} |")
    return lines if after else [*lines, f"| {NONE} | | | | |"]


def cell(text: str, most: int = 160) -> str:
    """Return a text as one cell of a table."""
    plain = " ".join(text.replace("|", "/").replace("<", "&lt;").split())
    return plain if len(plain) <= most else f"{plain[:most]}..."


def _score(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if metric in PERCENT else f"{value:.3g}"


def trial_table(folder: Path = RESULTS_FIELD) -> list[str]:
    """Return one line per trial."""
    sklearn = read_scores(folder / SKLEARN)
    lines = header(
        "device", "budget", "machine", "set", "seconds", "limit", "CPU seconds", "erm after", "methods", "choice",
        "metric", "choice scores", "erm", "best baseline", "choice - baseline", "choice - scikit-learn", "verdict",
    )  # fmt: skip
    trials = sorted(read_trials(folder / TRIALS), key=_order)
    for trial in trials:
        metric, averages = trial["metric"] or "", trial["averages"]
        simple = best_simple(trial) if metric else None
        gaps = (against_simple(trial), against_sklearn(trial, sklearn)) if metric else (None, None)
        wrong = verdicts(trial, sklearn)
        reason = f": {cell(trial['error'])}" if trial["error"] else ""
        cells = [
            *condition(trial), trial["set"], f"{trial['seconds']:.0f}",
            "-" if trial["limit"] is None else f"{trial['limit']:.0f}", f"{trial['cpu']:.0f}",
            "-" if trial["erm_seconds"] is None else f"{trial['erm_seconds']:.0f}", str(len(trial["methods"])),
            trial["choice"] or "-", NAMES.get(metric, metric) or "-", _score(metric, averages.get(trial["choice"])),
            _score(metric, averages.get(trial["erm"])),
            "-" if simple is None else f"{simple} {_score(metric, averages[simple])}",
            *("-" if gap is None else gap.shown(metric) for gap in gaps),
            (", ".join(wrong) or "good") + reason,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines if trials else [*lines, f"| {NONE} |{' |' * 16}"]


def set_table(folder: Path = RESULTS_FIELD) -> list[str]:
    """Return one line per set of which the scikit-learn scores are known."""
    known = read_scores(folder / SKLEARN)
    lines = header("set", "data", "kind", "rows", "domains", "classes", "scikit-learn", "seconds", "source")
    for name, entry in SETS.items():
        if name not in known:
            continue
        about, metric = known[name], "rmse" if entry.numbers else "accuracy"
        mean = fmean(values[metric] for values in about["scores"].values())
        cells = [
            name, entry.title, entry.kind, f"{about['rows']:,}", str(about["domains"]), str(about["classes"] or "-"),
            f"{NAMES[metric]} {_score(metric, mean)}", f"{about['seconds']:.1f}", entry.origin,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines if known else [*lines, f"| no score has been recorded |{' |' * 8}"]


TABLES: dict[str, Callable[[], list[str]]] = {
    "summary": summary_table, "commands": command_table, "trials": trial_table, "sets": set_table,
}  # fmt: skip
