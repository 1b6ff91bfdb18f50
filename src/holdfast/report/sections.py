"""What records say of analyses: distances by method and target, which runs are pictured, memories in numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.record import RunRecord
from holdfast.report.labels import configuration, natural
from holdfast.report.statistics import summarise

Groups = Mapping[str, Sequence[RunRecord]]  # label -> its records, in the order of the page
SIDES = (("sources", "effective"), ("targets", "effective"), ("sources", "used"), ("targets", "used"))
T = TypeVar("T")
PICTURED = 12  # runs that are pictured: a page stays light enough for a phone


def missing_analysis_notes(records: Iterable[RunRecord], needs: Mapping[str, str]) -> list[str]:
    """A sentence for the analyses that found nothing in any run, of those that are named with what they need."""
    told = [record.analysis for record in records]
    idle: dict[str, list[str]] = {}
    for name, needed in needs.items():
        if all(found.get(name) is None for found in told):
            idle.setdefault(needed, []).append(name)
    return [f"{', '.join(names)}: nothing to show, since no run has {needed}" for needed, names in idle.items()]


@dataclass(frozen=True, slots=True)
class Bar:
    """A mean over seeds; the error is the standard error over them, or, of one seed, the spread over repeats."""

    mean: float
    error: float
    seeds: int


@dataclass(frozen=True, slots=True)
class Shown:
    """One run that is pictured."""

    label: str
    target: str
    seed: Any
    id: str
    found: Mapping[str, Any]  # what the analysis says

    @property
    def name(self) -> str:
        return named(self.label, self.target)


def distances(groups: Groups) -> dict[str, dict[str, Bar]]:
    """Label -> target -> A-distance, for what has one; labels and targets in the order of the page."""
    crossed = _crossed(r for group in groups.values() for r in group)
    found: dict[str, dict[str, Bar]] = {}
    for label, group in groups.items():
        by_target: dict[str, list[Mapping[str, Any]]] = {}
        for record in group:
            told = record.analysis.get("a-distance") or {"targets": {}}
            for target, distance in told["targets"].items():
                by_target.setdefault(f"{record.episode}>{target}" if crossed else target, []).append(distance)
        if by_target:
            found[label] = {t: _bar(by_target[t]) for t in sorted(by_target, key=natural)}
    return found


def noise(groups: Groups) -> float | None:
    """The largest scatter of one repeat where domains are the same, over all distances of these records."""
    told = [r.analysis.get("a-distance") for group in groups.values() for r in group]
    return max((d["noise"] for each in told if each for d in each["targets"].values()), default=None)


def pictured(groups: Groups, name: str) -> tuple[list[Shown], int]:
    """The runs of which what an analysis found is pictured; and how many are left out."""
    shown, left = first_seeds(groups, lambda record: record.analysis.get(name))
    return [Shown(label, _targets(told), r.spec.get("seed"), r.id, told) for label, r, told in shown], left


def first_seeds(groups: Groups, look: Callable[[RunRecord], T | None]) -> tuple[list[tuple[str, RunRecord, T]], int]:
    """The first seed of each method, target by target, up to a limit, with what is seen; and how many are left out."""
    once: dict[tuple[str, str], tuple[str, RunRecord, T]] = {}
    total = 0
    for label, group in groups.items():
        for record in group:
            if (told := look(record)) is not None:
                total += 1
                once.setdefault((record.episode, label), (label, record, told))
    places = {label: place for place, label in enumerate(groups)}
    order = sorted(once, key=lambda key: (natural(key[0]), places[key[1]]))
    shown = [once[key] for key in order[:PICTURED]]
    return shown, total - len(shown)


def memories(groups: Groups) -> list[dict[str, Any]]:
    """A line for each method and target: slots in use on the sources and on the target, and the memory's weight."""
    lines = []
    for label, group in groups.items():
        by_target: dict[str, list[Mapping[str, Any]]] = {}
        for record in group:
            if (told := record.analysis.get("memory-use")) is not None:
                by_target.setdefault(_targets(told), []).append(told)
        for target in sorted(by_target, key=natural):
            runs = by_target[target]
            sides = [[_mean(_of(run, side, key)) for run in runs] for side, key in SIDES]
            lines.append({
                "label": named(label, target),
                "slots": runs[0]["slots"],
                **{f"{key} {side}": _mean(values) for (side, key), values in zip(SIDES, sides, strict=True)},
                "weight": _mean([run["weight"] for run in runs]),
                "moved": _mean([run["moved"] for run in runs]),
            })  # fmt: skip
    return lines


def slot_usage(found: Mapping[str, Any], side: str) -> list[float]:
    """The mean over the domains of a side of the weight of each shown slot."""
    rows = [each["usage"] for each in found[side].values()]
    return [math.fsum(values) / len(rows) for values in zip(*rows, strict=True)]


def named(label: str, target: str) -> str:
    """`mil to films`; where nothing was left out, the method alone."""
    return f"{label} to {target}" if target else label


def _bar(told: Sequence[Mapping[str, Any]]) -> Bar:
    cell = summarise([float(each["mean"]) for each in told])
    return Bar(cell.mean, float(told[0]["std"]) if cell.stderr is None else cell.stderr, cell.n)


def _crossed(records: Iterable[RunRecord]) -> bool:
    """Whether several episodes measure one target, so that its name alone would mix them."""
    seen = Counter(
        (configuration(r), r.spec.get("seed"), target)
        for r in records
        for target in (r.analysis.get("a-distance") or {"targets": {}})["targets"]
    )
    return any(count > 1 for count in seen.values())


def _targets(told: Mapping[str, Any]) -> str:
    return ", ".join(told["targets"])


def _of(run: Mapping[str, Any], side: str, key: str) -> Iterator[float]:
    return (each[key] for each in run[side].values())


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else None
