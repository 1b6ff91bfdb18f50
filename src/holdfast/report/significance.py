"""Test every method against its baseline, and recommend the row with the highest expected score on unseen domains.

The expected score of a method is that of its baseline plus its gain, shrunk by its uncertainty (`report.expected`); the
gain must be probable as well. Simple baselines compete with their average, since none of them is more complex than ERM.
So do combinations of runs, whose members and weights are chosen on source validation rows.

Tests are over pairs of seed and target, or per example if there are too few seeds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.record import LOWER_IS_BETTER, RunRecord, unpacked
from holdfast.report.engagement import is_idle
from holdfast.report.expected import Gain, expected_gains
from holdfast.report.labels import (
    BASELINE,
    COMBINED,
    CONSTANT,
    configuration,
    grouped,
    is_collapsed,
    is_plain,
    settings_key,
)
from holdfast.report.statistics import McNemar, Paired, holm, mcnemar, paired_t
from holdfast.report.table import Row, baselines, data_and_plan, rows
from holdfast.report.words import format_difference, format_number, format_p

MIN_SEEDS = 3  # fewer seeds do not allow a test over seeds
LEVEL = 0.05
CONFIDENCE = 0.8  # probability of a gain over its baseline that a recommended method needs
MARGIN = 0.002  # of the average, that a combination must gain over simpler candidates
METHOD = ("seed", "method", "method_args")  # a method may differ from its baseline in these settings
NECK = ("neck", "neck_args")  # and from a plain baseline also in these

Correctness = dict[tuple[object, str, str], list[bool]]  # (seed, episode, domain) -> correct or not, per example


@dataclass(frozen=True, slots=True)
class Against:
    """Paired t test of one method against its baseline."""

    label: str
    rival: str
    pairs: Paired  # over pairs of seed and target
    p: float | None  # of `pairs`, Holm-corrected over all methods of the records
    seeds: Paired  # over seeds, each the mean over targets
    idle: bool = False  # no mechanism of the method is engaged


@dataclass(frozen=True, slots=True)
class ByExample:
    """McNemar's test of one method against its baseline."""

    label: str
    rival: str
    test: McNemar
    p: float | None  # Holm-corrected over all methods of the records
    idle: bool = False


def paired(
    a: Iterable[RunRecord], b: Iterable[RunRecord], metric: str, *, over: Literal["pairs", "seeds"] = "pairs"
) -> Paired | None:
    """Paired t test of two configurations on the seeds and targets that both have; None if they share none.

    With `over="pairs"`, every combination of seed and target is one pair. Pairs of one seed share training domains and
    are not fully independent, so p is somewhat too small; `over="seeds"` pairs means over targets and is stricter.
    """
    left, right = _final_scores(a, metric), _final_scores(b, metric)
    shared = [key for key in left if key in right]
    if not shared:
        return None
    if over == "pairs":
        return paired_t([left[k] for k in shared], [right[k] for k in shared])
    by_seed: dict[Any, list[tuple[str, str]]] = {}
    for seed, episode, domain in shared:
        by_seed.setdefault(seed, []).append((episode, domain))
    most = max(map(len, by_seed.values()))
    complete = [(seed, targets) for seed, targets in by_seed.items() if len(targets) == most]
    means = [[sum(side[seed, *t] for t in targets) / most for seed, targets in complete] for side in (left, right)]
    return paired_t(means[0], means[1])


def _final_scores(group: Iterable[RunRecord], metric: str) -> dict[tuple[Any, str, str], float]:
    """Map (seed, episode, domain) to the score after the last stage."""
    return {
        (record.spec.get("seed"), record.episode, domain): float(scores[metric])
        for record in group
        for domain, scores in (record.stages[-1]["test"] if record.stages else {}).items()
        if scores.get(metric) is not None
    }


def against_baseline(records: Iterable[RunRecord], metric: str) -> list[Against]:
    """Test each method that shares at least three seeds with its baseline on the same data and plan."""
    groups = grouped(records)
    tests = []
    for name, rival, seeds in rivals(groups):
        pairs, means = (paired(groups[name], groups[rival], metric, over=over) for over in ("pairs", "seeds"))
        if seeds >= MIN_SEEDS and pairs is not None and means is not None:
            tests.append((name, rival, pairs, means))
    corrected = holm([pairs.p for _, _, pairs, _ in tests])
    named = zip(tests, corrected, strict=True)
    return [Against(name, rival, pairs, p, means, is_idle(groups[name])) for (name, rival, pairs, means), p in named]


def by_example(records: Iterable[RunRecord]) -> list[ByExample]:
    """McNemar's test of each method against its baseline if they share too few seeds for a test over seeds.

    It tests whether two trained models differ on such examples, not whether other seeds would differ.
    """
    groups = grouped(records)
    tests = []
    for name, rival, seeds in rivals(groups):
        a, b = shared_correctness(correctness(groups[name]), correctness(groups[rival]))
        if seeds < MIN_SEEDS and a:
            tests.append((name, rival, mcnemar(a, b)))
    corrected = holm([test.p for _, _, test in tests])
    named = zip(tests, corrected, strict=True)
    return [ByExample(name, rival, test, p, is_idle(groups[name])) for (name, rival, test), p in named]


def rivals(groups: dict[str, list[RunRecord]]) -> list[tuple[str, str, int]]:
    """Return (method, its baseline, number of shared seeds) per method that has a baseline."""
    tested = {name: group for name, group in groups.items() if group[0].spec["method"] not in CONSTANT}
    pairs = [(name, baseline_of(group[0], groups)) for name, group in tested.items()]
    seeds = {name: {r.spec.get("seed") for r in group} for name, group in groups.items()}
    return [(name, rival, len(seeds[name] & seeds[rival])) for name, rival in pairs if rival is not None]


def baseline_of(record: RunRecord, groups: dict[str, list[RunRecord]]) -> str | None:
    """Return the baseline to compare with: the only one on this data and plan, or the one with equal settings.

    None if there is no such baseline, and for a baseline itself.
    """
    candidates = baselines(groups, data_and_plan(record))
    if any(configuration(other) == configuration(record) for other in candidates.values()):
        return None
    if len(candidates) > 1:
        ignored = (*METHOD, *NECK) if all(map(is_plain, candidates.values())) else METHOD
        settings = settings_key(record.spec, *ignored)
        candidates = {n: other for n, other in candidates.items() if settings_key(other.spec, *ignored) == settings}
    return next(iter(candidates)) if len(candidates) == 1 else None


def correctness(records: Iterable[RunRecord], *, stage: int = -1) -> Correctness:
    """Return which test examples were predicted correctly after a stage; records without this field are skipped."""
    return {
        (record.spec.get("seed"), record.episode, domain): unpacked(text)
        for record in records
        for domain, text in (record.stages[stage].get("right", {}) if record.stages else {}).items()
    }


def shared_correctness(a: Correctness, b: Correctness) -> tuple[list[bool], list[bool]]:
    """Concatenate the correctness of the examples that both have."""
    shared = [key for key in a if key in b and len(a[key]) == len(b[key])]
    return [value for key in shared for value in a[key]], [value for key in shared for value in b[key]]


def baseline_note(tests: Sequence[Against], metric: str) -> str | None:
    """Summarise the tests against the baseline in one sentence; None without tests."""
    if not tests:
        return None
    significant = [test for test in tests if is_significant(test)]
    pairs = {test.pairs.n for test in tests}
    count = str(min(pairs)) if len(pairs) == 1 else f"{min(pairs)} to {max(pairs)}"
    procedure = f"paired t test over {count} seed-target pairs, Holm-corrected p < {LEVEL}"
    rivals = {test.rival for test in tests}
    rival = rivals.pop() if len(rivals) == 1 else f"their {BASELINE}"
    idle = _idle_labels(tests)
    rest = len(tests) - len(significant) - len(idle)
    note = [f"not engaged: {', '.join(idle)}"] if idle else []
    if not significant:
        none = f"no{' other' if idle else ''} method differs significantly from {rival} ({procedure})"
        return "; ".join([*note, *([none] if rest else [])])
    differences = [
        f"{test.label} {format_difference(test.pairs.difference, metric)} (p {_p_relation(test.p)})"
        for test in significant
    ]
    others = [f"{rest} other method{' does' if rest == 1 else 's do'} not differ significantly"] if rest else []
    different = f"significantly different from {rival} ({procedure}): {', '.join(differences)}"
    return "; ".join([different, *others, *note])


def by_example_note(tests: Sequence[ByExample]) -> str | None:
    """Summarise the tests per example in one sentence; None without tests."""
    if not tests:
        return None
    procedure = f"McNemar's test on the same examples, Holm-corrected p < {LEVEL}; other seeds may differ"
    differences = [
        f"{test.label} is correct on {test.test.only_a} examples that {test.rival} gets wrong, and wrong on "
        f"{test.test.only_b} that it gets right (p {_p_relation(test.p)})"
        for test in tests
        if is_significant(test)
    ]
    idle = _idle_labels(tests)
    note = f"not engaged: {', '.join(idle)}" if idle else ""
    if idle and len(idle) == len(tests):
        return note
    if not differences:
        other = " other" if idle else ""
        differences = [f"no{other} method differs significantly from {BASELINE}"]
    text = f"on the test examples of these runs {'; '.join(differences)} ({procedure})"
    return f"{text}; {note}" if note else text


def _idle_labels(tests: Sequence[Against] | Sequence[ByExample]) -> list[str]:
    """Return the methods that do not differ from their baseline and have no engaged mechanism: nothing was tested."""
    return [test.label for test in tests if test.idle and not is_significant(test)]


def is_significant(test: Against | ByExample | None) -> bool:
    """Whether the corrected p-value of a test is below the level."""
    return test is not None and test.p is not None and test.p < LEVEL


def _p_relation(p: float | None) -> str:
    text = format_p(p)
    return text if text.startswith("<") else f"= {text}"


@dataclass(frozen=True, slots=True)
class Decision:
    """The recommended row, the spec of one of its runs, and the reason."""

    label: str
    spec: dict[str, Any]
    why: str


def decide(records: Iterable[RunRecord], metric: str) -> Decision | None:
    """Recommend a configuration; None if no run is complete or the records mix data sets or plans."""
    accepted = [group for group in grouped(records).values() if not is_collapsed(group)]
    groups = grouped(record for group in accepted for record in group)  # their labels may be shorter
    records = [record for group in groups.values() for record in group]
    sign = -1 if metric in LOWER_IS_BETTER else 1
    means = [(row, row.average.mean) for row in rows(records, metric) if row.average is not None]
    table = [row for row, mean in sorted(means, key=lambda pair: -sign * pair[1]) if math.isfinite(mean)]
    if len({data_and_plan(record) for record in records}) != 1 or not table:
        return None
    label, why = _choose(records, table, metric, sign)
    return Decision(label, groups[label][0].spec, why)


def _choose(records: Sequence[RunRecord], table: Sequence[Row], metric: str, sign: int) -> tuple[str, str]:
    """Return label and reason; `table` is sorted, the best row first."""
    baseline = next((row for row in table if row.baseline), None)
    if len(table) == 1:
        return table[0].label, "it is the only configuration with complete runs"
    if baseline is None:
        return table[0].label, f"it has the best average, which cannot be tested because {BASELINE} was not run"
    tests = {test.label: test for test in against_baseline(records, metric)}
    gains = expected_gains({label: test.pairs for label, test in tests.items()}, lower_is_better=sign < 0)
    candidates = [
        (sign * score, row) for row in table if (score := _expected(row, table, tests, gains, sign)) is not None
    ]
    best = max(candidates, key=lambda candidate: candidate[0])[1]
    if best.simple or best.combined:
        return best.label, _simple_reason(best, table, baseline, metric)
    if best is not baseline:
        test, gain = tests[best.label], gains[best.label]
        rival = next(other for other in table if other.label == test.rival)
        measured = f"measured {format_difference(test.pairs.difference, metric)} over {test.pairs.n} seed-target pairs"
        return best.label, (
            f"it has the highest expected score, {format_difference(gain.mean, metric)} compared with {test.rival}, "
            f"and is better with a probability of {format_probability(gain.probability)} ({measured}, p "
            f"{format_p(test.p)} after Holm's correction){_compare_worst(best, rival, metric)}"
        )
    if tests:
        idle = _idle_labels(list(tests.values()))
        which = f"no method with an engaged mechanism (not engaged: {', '.join(idle)})" if idle else "no method"
        return baseline.label, (
            f"{which} is better than {BASELINE} with a probability of {format_probability(CONFIDENCE)} or more, and "
            f"{baseline.label} is the simplest"
        )
    return baseline.label, (
        f"fewer than three seeds cannot show that a method is better than {BASELINE}, and {baseline.label} is the "
        f"simplest{_better_by_example(records, table)}; use --seeds 3 for a test over seeds"
    )


def _expected(
    row: Row, table: Sequence[Row], tests: Mapping[str, Against], gains: Mapping[str, Gain], sign: int
) -> float | None:
    """Return the expected score of a row on unseen domains; None if it must not be recommended."""
    assert row.average is not None
    if row.baseline or row.simple or (row.combined and _is_worth_it(row, table, sign)):
        return row.average.mean
    gain = gains.get(row.label)
    if row.combined or gain is None or gain.probability < CONFIDENCE:
        return None
    rival = next(other for other in table if other.label == tests[row.label].rival)
    return None if rival.average is None else rival.average.mean + gain.mean


def format_probability(probability: float) -> str:
    """Format a probability in percent: `80%`, `more than 99%`."""
    return "more than 99%" if probability > 0.99 else f"{probability:.0%}"


def _is_worth_it(row: Row, table: Sequence[Row], sign: int) -> bool:
    """Whether a combination gains at least `MARGIN` over every simpler row that may be chosen without a test."""
    order = [other for other in COMBINED if other != row.label]
    simpler = order[: COMBINED.index(row.label)] if row.label in COMBINED else order
    others = [other for other in table if other.simple or other.baseline or other.label in simpler]
    means = [(each, each.average.mean) for each in (row, *others) if each.average is not None]
    return all(sign * (means[0][1] - other) >= MARGIN for _, other in means[1:])


def _simple_reason(row: Row, table: Sequence[Row], baseline: Row, metric: str) -> str:
    """Explain the choice of a simple baseline or a combination that is better than ERM."""
    own, other = (format_number(each.average.mean, metric) for each in (row, baseline) if each.average is not None)
    scores = f"{own} against {other} of {baseline.label}"
    kind = "this combination of runs" if row.combined else "this simple baseline"
    if row is table[0]:
        return f"{kind} has the best average, {scores}"
    return f"{kind} is better on average, {scores}, and no method has a higher expected score"


def _better_by_example(records: Sequence[RunRecord], table: Sequence[Row]) -> str:
    """Name the best method that is significantly better than its baseline on the examples of these runs."""
    tests = {test.label: test for test in by_example(records) if is_significant(test)}
    for row in table:
        test = tests.get(row.label)
        if test is not None and test.test.only_a > test.test.only_b:
            return (
                f"; in these runs {row.label} is correct on more examples than {test.rival} "
                f"(p {format_p(test.p)}, McNemar's test), but other seeds may differ"
            )
    return ""


def _compare_worst(row: Row, rival: Row, metric: str) -> str:
    """Compare the worst domains of a row and its baseline."""
    if row.worst is None or rival.worst is None:
        return ""
    a, b = (f"{format_number(score, metric)} ({domain})" for domain, score in (row.worst, rival.worst))
    return f"; its worst domain scores {a}, that of {rival.label} {b}"
