"""Two configurations on the same test examples: which of them only one gets right. For one or two seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.record import RunRecord, unpacked
from holdfast.report.against import LEAST_SEEDS, LEVEL, rival_of, told_p
from holdfast.report.labels import BASELINE, grouped
from holdfast.report.significance import McNemar, holm, mcnemar

Judged = dict[tuple[object, str, str], list[bool]]  # seed, episode, domain -> right or wrong, in the order of the rows


@dataclass(frozen=True, slots=True)
class ByExample:
    """One method against its baseline, example by example."""

    label: str
    rival: str
    test: McNemar
    p: float | None  # Holm-corrected over all methods of the records


def judged(records: Iterable[RunRecord], *, stage: int = -1) -> Judged:
    """Which test examples were right after a stage; records that do not say are left out."""
    found = {}
    for record in records:
        for domain, text in (record.stages[stage].get("right", {}) if record.stages else {}).items():
            found[record.spec.get("seed"), record.episode, domain] = unpacked(text)
    return found


def joined(a: Judged, b: Judged) -> tuple[list[bool], list[bool]]:
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
        rival = rival_of(group[0], groups)
        if rival is None:
            continue
        seeds = {r.spec.get("seed") for r in group} & {r.spec.get("seed") for r in groups[rival]}
        mine, theirs = joined(judged(group), judged(groups[rival]))
        if len(seeds) < LEAST_SEEDS and mine:
            yield name, rival, mcnemar(mine, theirs)


def note(found: list[ByExample]) -> str | None:
    """One sentence for the console; None where nothing was tested."""
    if not found:
        return None
    words = [
        f"{entry.label} is right {entry.test.only_a} times where {entry.rival} is not and wrong {entry.test.only_b} "
        f"times where it is (p {told_p(entry.p)})"
        for entry in found
        if entry.p is not None and entry.p < LEVEL
    ]
    how = f"McNemar's test on the same examples, Holm-corrected p < {LEVEL}; of these very runs, other seeds may differ"
    if not words:
        return f"example by example no method differs significantly from {BASELINE} ({how})"
    return f"example by example: {'; '.join(words)} ({how})"
