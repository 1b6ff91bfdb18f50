"""Every method against the baseline: paired over seeds and targets, corrected for how many are compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.record import RunRecord, unpacked
from holdfast.report.labels import BASELINE, configuration, grouped, is_plain
from holdfast.report.statistics import McNemar, Paired, holm, mcnemar, paired_t
from holdfast.report.table import baselines, data_and_plan
from holdfast.report.words import MISSING, is_percent, scaled

LEAST_SEEDS = 3  # fewer say nothing about chance
LEVEL = 0.05
OWN = ("seed", "method", "method_args")  # in which a method may differ from its baseline
NECK = ("neck", "neck_args")  # and from a plain one in these, too


@dataclass(frozen=True, slots=True)
class Against:
    """One method against its baseline."""

    label: str
    rival: str
    pairs: Paired  # over seed-target pairs
    p: float | None  # of `pairs`, Holm-corrected over all methods of the records
    seeds: Paired  # over seeds, each the mean over targets


def paired(
    a: Iterable[RunRecord], b: Iterable[RunRecord], metric: str, *, over: Literal["pairs", "seeds"] = "pairs"
) -> Paired | None:
    """A paired t test of two configurations on what both have; None where they share nothing.

    Over `pairs` every seed and target is one pair. Pairs of one seed share its training domains and are not quite
    independent, so p is somewhat too small; over `seeds` the pairs are means over targets, which is stricter.
    """
    left, right = _scores(a, metric), _scores(b, metric)
    shared = [key for key in left if key in right]
    if not shared:
        return None
    if over == "pairs":
        return paired_t([left[k] for k in shared], [right[k] for k in shared])
    by_seed: dict[Any, list[tuple[str, str]]] = {}
    for seed, *place in shared:
        by_seed.setdefault(seed, []).append((place[0], place[1]))
    most = max(len(places) for places in by_seed.values())
    whole = [(seed, places) for seed, places in by_seed.items() if len(places) == most]
    means = [[sum(side[seed, *p] for p in places) / most for seed, places in whole] for side in (left, right)]
    return paired_t(means[0], means[1])


def against_baseline(records: Iterable[RunRecord], metric: str) -> list[Against]:
    """Each method that shares at least three seeds with a run of the baseline on the same data and plan."""
    groups = grouped(records)
    found = []
    for name, group in groups.items():
        rival = baseline_of(group[0], groups)
        if rival is None:
            continue
        seeds = {r.spec.get("seed") for r in group} & {r.spec.get("seed") for r in groups[rival]}
        pairs, means = paired(group, groups[rival], metric), paired(group, groups[rival], metric, over="seeds")
        if len(seeds) >= LEAST_SEEDS and pairs is not None and means is not None:
            found.append((name, rival, pairs, means))
    corrected = holm([pairs.p for _, _, pairs, _ in found])
    return [
        Against(name, rival, pairs, p, means)
        for (name, rival, pairs, means), p in zip(found, corrected, strict=True)
    ]  # fmt: skip


def format_p(p: float | None) -> str:
    """`0.012`, `< 0.001`."""
    if p is None:
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def format_difference(difference: float, metric: str) -> str:
    """`+1.2`, in points of a percentage or as it is."""
    return f"{scaled(difference, metric):+.{1 if is_percent(metric) else 3}f}"


def baseline_note(found: Sequence[Against], metric: str) -> str | None:
    """One sentence for the console; None where nothing was tested."""
    if not found:
        return None
    told = [entry for entry in found if entry.p is not None and entry.p < LEVEL]
    pairs = {entry.pairs.n for entry in found}
    over = f"{min(pairs)} seed-target pairs" if len(pairs) == 1 else f"{min(pairs)} to {max(pairs)} seed-target pairs"
    how = f"paired t over {over}, Holm-corrected p < {LEVEL}"
    rivals = {entry.rival for entry in found}
    against = rivals.pop() if len(rivals) == 1 else f"their {BASELINE}"
    if not told:
        return f"no method differs from {against} significantly ({how})"
    words = [
        f"{entry.label} {format_difference(entry.pairs.difference, metric)} (p {_equals(entry.p)})" for entry in told
    ]
    rest = len(found) - len(told)
    others = "" if not rest else f"; the other {rest} {'does' if rest == 1 else 'do'} not"
    return f"significantly different from {against} ({how}): {', '.join(words)}{others}"


def _equals(p: float | None) -> str:
    text = format_p(p)
    return text if text.startswith("<") else f"= {text}"


def _scores(group: Iterable[RunRecord], metric: str) -> dict[tuple[Any, str, str], float]:
    """(seed, episode, domain) -> score after the last stage."""
    found = {}
    for record in group:
        for domain, scores in (record.stages[-1]["test"] if record.stages else {}).items():
            value = scores.get(metric)
            if value is not None:
                found[record.spec.get("seed"), record.episode, domain] = float(value)
    return found


def baseline_of(record: RunRecord, groups: dict[str, list[RunRecord]]) -> str | None:
    """The baseline to compare with: the only one on this data and plan, or the one that agrees in all else.

    None where there is no such one, and for a baseline itself.
    """
    near = baselines(groups, data_and_plan(record))
    if any(configuration(other) == configuration(record) for other in near.values()):
        return None  # it is one itself
    if len(near) > 1:
        but = (*OWN, *NECK) if all(map(is_plain, near.values())) else OWN
        near = {name: other for name, other in near.items() if _rest(other, but) == _rest(record, but)}
    return next(iter(near)) if len(near) == 1 else None


def _rest(record: RunRecord, but: Sequence[str]) -> str:
    return json.dumps({k: v for k, v in record.spec.items() if k not in but}, sort_keys=True)


Judged = dict[tuple[object, str, str], list[bool]]  # seed, episode, domain -> right or wrong, in the order of the rows


@dataclass(frozen=True, slots=True)
class ByExample:
    """One method against its baseline, example by example."""

    label: str
    rival: str
    test: McNemar
    p: float | None  # Holm-corrected over all methods of the records


def correctness(records: Iterable[RunRecord], *, stage: int = -1) -> Judged:
    """Which test examples were right after a stage; records that do not say are left out."""
    found = {}
    for record in records:
        for domain, text in (record.stages[stage].get("right", {}) if record.stages else {}).items():
            found[record.spec.get("seed"), record.episode, domain] = unpacked(text)
    return found


def shared_correctness(a: Judged, b: Judged) -> tuple[list[bool], list[bool]]:
    """What both judge, end to end."""
    shared = [key for key in a if key in b and len(a[key]) == len(b[key])]
    return [each for key in shared for each in a[key]], [each for key in shared for each in b[key]]


def by_example(records: Iterable[RunRecord]) -> list[ByExample]:
    """McNemar's test of each method against its baseline where they share too few seeds for a test over seeds.

    Of one training run of each it tells whether they differ on such examples; nothing about other seeds.
    """
    found = list(_tested(grouped(records)))
    corrected = holm([test.p for _, _, test in found])
    return [ByExample(*each, p) for each, p in zip(found, corrected, strict=True)]


def _tested(groups: dict[str, list[RunRecord]]) -> Iterator[tuple[str, str, McNemar]]:
    for name, group in groups.items():
        rival = baseline_of(group[0], groups)
        if rival is None:
            continue
        seeds = {r.spec.get("seed") for r in group} & {r.spec.get("seed") for r in groups[rival]}
        mine, theirs = shared_correctness(correctness(group), correctness(groups[rival]))
        if len(seeds) < LEAST_SEEDS and mine:
            yield name, rival, mcnemar(mine, theirs)


def by_example_note(found: list[ByExample]) -> str | None:
    """One sentence for the console; None where nothing was tested."""
    if not found:
        return None
    words = [
        f"{entry.label} is right {entry.test.only_a} times where {entry.rival} is not and wrong {entry.test.only_b} "
        f"times where it is (p {format_p(entry.p)})"
        for entry in found
        if entry.p is not None and entry.p < LEVEL
    ]
    how = f"McNemar's test on the same examples, Holm-corrected p < {LEVEL}; of these very runs, other seeds may differ"
    if not words:
        return f"example by example no method differs significantly from {BASELINE} ({how})"
    return f"example by example: {'; '.join(words)} ({how})"
