"""Test every method against its baseline, and recommend the row with the highest expected score on unseen domains.

One rule decides. The reference is the better one of plain training and the best simple baseline, by their averages.
Another row replaces it if it is significantly better: a one-sided paired t test over pairs of seed and target, Holm's
correction over all methods at one half of `LEVEL`, and over all combinations at the other half. Of several such rows
the one with the highest expected gain wins, which is the measured gain shrunk by its uncertainty (`stats.shrinkage`).
With rows of different numbers of training rows, the rule is applied to each number. Samples have test rows of their
own, so that the choice on a smaller one counts only if it is further above the constant there than the choice on more
rows is above the constant on these.

Tests in tables are over pairs of seed and target, or per example if there are too few seeds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.record import LOWER_IS_BETTER, RunRecord, unpacked
from holdfast.stats.engagement import is_idle
from holdfast.stats.formatting import format_difference, format_number, format_p
from holdfast.stats.labels import (
    BASELINE,
    CONSTANT,
    configuration,
    grouped,
    is_collapsed,
    is_plain,
    settings_key,
    without_rows,
)
from holdfast.stats.shrinkage import Gain, expected_gains
from holdfast.stats.statistics import McNemar, Paired, holm, mcnemar, paired_t
from holdfast.stats.table import Row, baselines, data_and_plan, experiment, rows

MIN_SEEDS = 3  # fewer seeds do not allow a test over seeds
LEVEL = 0.05
FEWEST_PAIRS = 3  # of a test that decides
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
    expected: float | None = None  # score on an unseen domain; gains over the reference are shrunk


def decide(records: Iterable[RunRecord], metric: str) -> Decision | None:
    """Recommend a configuration; None if no run is complete or the records mix data sets or plans."""
    accepted = [group for group in grouped(records).values() if not is_collapsed(group)]
    groups = grouped(record for group in accepted for record in group)  # their labels may be shorter
    if len({experiment(group[0]) for group in groups.values()}) != 1:
        return None
    labels = {configuration(group[0]): label for label, group in groups.items()}
    sizes: dict[float, list[RunRecord]] = {}
    for group in groups.values():
        sizes.setdefault(group[0].spec.get("rows") or math.inf, []).extend(group)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    best: tuple[float, Decision] | None = None  # with its gain over the constant on the same rows
    on_more_rows: set[str] = set()
    constants = {size: _constant(members, metric) for size, members in sizes.items()}
    if any(map(math.isnan, constants.values())):
        constants = dict.fromkeys(constants, 0.0)
    for size, members in sorted(sizes.items(), key=lambda pair: -pair[0]):
        chosen = _choose(members, metric)
        if chosen is not None:
            score, record, why, expected = chosen
            score -= constants[size]
            label = labels[configuration(record)]
            if best is None:
                best = score, Decision(label, record.spec, why, expected)
            elif score > best[0] and without_rows(record) not in on_more_rows:
                shown = [format_difference(sign * value, metric) for value in (score, best[0])]
                over = f"{shown[0]} from the constant on its rows, against {shown[1]} of {best[1].label} on more rows"
                why = f"it differs by {over}; among equally many rows {why}"
                best = score, Decision(label, record.spec, why, expected)
        on_more_rows |= set(map(without_rows, members))
    return None if best is None else best[1]


def _constant(records: Iterable[RunRecord], metric: str) -> float:
    """Return the score of the constant on these rows, higher is better; NaN if it was not run."""
    runs = [record for record in records if record.spec["method"] in CONSTANT]
    average = next((row.average for row in rows(runs, metric) if row.average is not None), None)
    return math.nan if average is None else (-average.mean if metric in LOWER_IS_BETTER else average.mean)


def _choose(records: Sequence[RunRecord], metric: str) -> tuple[float, RunRecord, str, float] | None:
    """Return the choice among records on equally many rows: score (higher is better), record, reason, expectation."""
    groups, sign = grouped(records), -1 if metric in LOWER_IS_BETTER else 1
    scored = [row for row in rows(records, metric) if row.average is not None]
    means = {row.label: row.average.mean for row in scored if row.average is not None}
    table = [row for row in scored if math.isfinite(means[row.label])]
    table.sort(key=lambda row: -sign * means[row.label])
    if not table:
        return None
    reference = next((row for row in table if row.baseline or row.simple), None)

    def chosen(row: Row, why: str, expected: float | None = None) -> tuple[float, RunRecord, str, float]:
        mean = means[row.label]
        return sign * mean, groups[row.label][0], why, mean if expected is None else expected

    if reference is None:
        return chosen(table[0], f"it has the best average, which cannot be tested because {BASELINE} was not run")
    if len(table) == 1:
        return chosen(reference, "no other configuration has complete runs on its rows")
    tests = {}
    for combined in (False, True):
        tests |= _one_sided([row for row in table if row.combined == combined], reference, groups, metric)
    gains = expected_gains({label: test.pairs for label, test in tests.items()}, lower_is_better=sign < 0)
    better = [row for row in table if row.label in tests and tests[row.label].p < LEVEL / 2 and row.label in gains]
    if better:
        row = max(better, key=lambda row: sign * gains[row.label].mean)
        gain = gains[row.label]
        return chosen(
            row, _gain_reason(row, reference, tests[row.label], gain, metric), means[reference.label] + gain.mean
        )
    idle = [row.label for row in table if row.label in tests and is_idle(groups[row.label])]
    why = _reference_reason(reference, table, metric) + (f" (not engaged: {', '.join(idle)})" if idle else "")
    return chosen(reference, why + _untested(table, reference, tests))


@dataclass(frozen=True, slots=True)
class _OneSided:
    """Test whether a row is better than the reference."""

    pairs: Paired
    p: float  # Holm-corrected, one-sided


def _one_sided(
    candidates: Sequence[Row], reference: Row, groups: Mapping[str, list[RunRecord]], metric: str
) -> dict[str, _OneSided]:
    """Test the candidates that share enough pairs of seed and target with the reference."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    pairs = {}
    for row in candidates:
        if row is not reference and not row.simple and not row.baseline:
            test = paired_over_seeds(groups[row.label], groups[reference.label], metric)
            if test is not None and test.n >= FEWEST_PAIRS and test.p is not None:
                pairs[row.label] = test
    two_sided = {label: test.p or 0.0 for label, test in pairs.items()}
    one_sided = [p / 2 if sign * pairs[label].difference > 0 else 1 - p / 2 for label, p in two_sided.items()]
    return {
        label: _OneSided(test, 1.0 if p is None else p)
        for (label, test), p in zip(pairs.items(), holm(one_sided), strict=True)
    }


def paired_over_seeds(a: Iterable[RunRecord], b: Iterable[RunRecord], metric: str) -> Paired | None:
    """Paired t test over seeds and targets; a combination of all seeds is paired with the mean over the other's."""
    left, right = _final_scores(a, metric), _final_scores(b, metric)
    if {seed for seed, *_ in left} == {None}:
        by_target: dict[tuple[Any, str, str], list[float]] = {}
        for (_, episode, domain), score in right.items():
            by_target.setdefault((None, episode, domain), []).append(score)
        right = {key: math.fsum(scores) / len(scores) for key, scores in by_target.items()}
    shared = [key for key in left if key in right]
    return paired_t([left[k] for k in shared], [right[k] for k in shared]) if shared else None


def _gain_reason(row: Row, reference: Row, test: _OneSided, gain: Gain, metric: str) -> str:
    measured = f"measured {format_difference(test.pairs.difference, metric)} over {test.pairs.n} seed-target pairs"
    kind = "this combination of runs" if row.combined else "it"
    return (
        f"{kind} has the highest expected score of those that are significantly better than {reference.label}, "
        f"{format_difference(gain.mean, metric)} compared with it ({measured}, p {_p_relation(test.p)}, one-sided, "
        f"after Holm's correction){_compare_worst(row, reference, metric)}"
    )


def _reference_reason(reference: Row, table: Sequence[Row], metric: str) -> str:
    """Explain the choice of plain training or of a simple baseline."""
    other = next((row for row in table if row.baseline != reference.baseline and (row.baseline or row.simple)), None)
    none = "no other method or combination is significantly better"
    if other is None or other.average is None or reference.average is None:
        return f"{none}, and {reference.label} is the simplest"
    own, its = (format_number(each.average.mean, metric) for each in (reference, other) if each.average is not None)
    return f"{own} against {its} of {other.label}, and {none}"


def _untested(table: Sequence[Row], reference: Row, tests: Mapping[str, _OneSided]) -> str:
    """State how many rows could not be tested, and what would help."""
    left = [row for row in table if not (row.simple or row.baseline or row.label in tests)]
    if not left:
        return ""
    return f"; {len(left)} of them could not be tested with so few pairs of seed and domain (--seeds 3 --budget 20m)"


def _compare_worst(row: Row, rival: Row, metric: str) -> str:
    """Compare the worst domains of a row and its baseline."""
    if row.worst is None or rival.worst is None:
        return ""
    a, b = (f"{format_number(score, metric)} ({domain})" for domain, score in (row.worst, rival.worst))
    return f"; its worst domain scores {a}, that of {rival.label} {b}"
