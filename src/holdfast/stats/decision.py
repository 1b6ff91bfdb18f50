"""Test every method against its baseline, and recommend the row with the highest expected score on unseen domains.

One rule decides. The reference is the better one of plain training and the best simple baseline, by their averages.
Another row replaces it if it is significantly better: a one-sided paired t test over pairs of seed and target, Holm's
correction over all methods at one half of `LEVEL`, and over all combinations at the other half. Of several such rows
the one with the highest expected gain wins, which is the measured gain shrunk by its uncertainty (`expected_gains`).
With rows of different numbers of training rows, the rule is applied to each number. Samples have test rows of their
own, so that the choice on a smaller one counts only if it is further above the constant there than the choice on more
rows is above the constant on these.

Tests in tables are over pairs of seed and target, or per example if there are too few seeds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from holdfast.record import LOWER_IS_BETTER, RunRecord, unpacked
from holdfast.stats.engagement import is_idle
from holdfast.stats.formatting import format_difference, format_number, format_p
from holdfast.stats.labels import (
    BASELINE,
    CONSTANT,
    Groups,
    configuration,
    grouped,
    is_collapsed,
    is_plain,
    settings_key,
    without_rows,
)
from holdfast.stats.statistics import McNemar, Paired, expected_gains, holm, margin, mcnemar, paired_t
from holdfast.stats.table import Row, Table, baselines, data_and_plan, experiment, final_scores, tabulate

MIN_SEEDS = 3  # fewer seeds do not allow a test over seeds
LEVEL = 0.05
FEWEST_PAIRS = 3  # of a test that decides
METHOD = ("seed", "method", "method_args")  # a method may differ from its baseline in these settings
NECK = ("neck", "neck_args")  # and from a plain baseline also in these

Correctness = dict[tuple[object, str, str], list[bool]]  # (seed, episode, domain) -> correct or not, per example


@dataclass(frozen=True, slots=True)
class Difference:
    """Paired t tests of one row against its baseline."""

    label: str
    rival: str
    pairs: Paired  # over pairs of seed and target
    seeds: Paired  # over seeds, each the mean over targets
    tested: bool  # whether both share enough seeds for a test
    p: float | None  # of `pairs`, Holm-corrected over all tested rows
    idle: bool  # no mechanism of the row is engaged

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < LEVEL

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of the difference over pairs; None for a single pair."""
        if self.pairs.stderr is None:
            return None
        half = margin(self.pairs.stderr, self.pairs.n)
        return self.pairs.difference - half, self.pairs.difference + half

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


@dataclass(frozen=True, slots=True)
class ByExample:
    """McNemar's test of one method against its baseline."""

    label: str
    rival: str
    test: McNemar
    p: float | None  # Holm-corrected over all methods of the records
    idle: bool

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < LEVEL


def paired(
    a: Iterable[RunRecord], b: Iterable[RunRecord], metric: str, *, over: Literal["pairs", "seeds"] = "pairs"
) -> Paired | None:
    """Paired t test of two configurations on the seeds and targets that both have; None if they share none.

    With `over="pairs"`, every combination of seed and target is one pair. Pairs of one seed share training domains and
    are not fully independent, so p is somewhat too small; `over="seeds"` pairs means over targets and is stricter.
    """
    left, right = final_scores(a, metric), final_scores(b, metric)
    if over == "pairs":
        return _paired(left, right)
    by_seed: dict[Any, list[tuple[str, str]]] = {}
    for seed, episode, domain in (key for key in left if key in right):
        by_seed.setdefault(seed, []).append((episode, domain))
    # only seeds with the most targets: a mean over fewer of them is easier or harder, not better or worse
    most = max(map(len, by_seed.values()), default=0)
    complete = {seed: targets for seed, targets in by_seed.items() if len(targets) == most}
    means = [{s: sum(side[s, *t] for t in ts) / most for s, ts in complete.items()} for side in (left, right)]
    return _paired(means[0], means[1])


def _paired(a: Mapping[Any, float], b: Mapping[Any, float]) -> Paired | None:
    """Test the keys that both have; None if they share none."""
    shared = [key for key in a if key in b]
    return paired_t([a[key] for key in shared], [b[key] for key in shared]) if shared else None


def differences(groups: Groups, metric: str) -> list[Difference]:
    """Compare each row with its baseline on the same data and plan; rows that share no scores are left out."""
    entries = []
    for name, rival, shared in rivals(groups):
        pairs, seeds = (paired(groups[name], groups[rival], metric, over=over) for over in ("pairs", "seeds"))
        if pairs is not None and seeds is not None:
            # rows with few seeds are listed without a p value, and so do not weaken the correction of the others
            tested = shared >= MIN_SEEDS
            entries.append(Difference(name, rival, pairs, seeds, tested, None, is_idle(groups[name])))
    corrected = holm([entry.pairs.p if entry.tested else None for entry in entries])
    return [replace(entry, p=p) for entry, p in zip(entries, corrected, strict=True)]


def by_example(groups: Groups) -> list[ByExample]:
    """McNemar's test of each method against its baseline if they share too few seeds for a test over seeds.

    It tests whether two trained models differ on such examples, not whether other seeds would differ.
    """
    entries = []
    for name, rival, seeds in rivals(groups):
        a, b = shared_correctness(correctness(groups[name]), correctness(groups[rival]))
        if seeds < MIN_SEEDS and a:
            entries.append(ByExample(name, rival, mcnemar(a, b), None, is_idle(groups[name])))
    corrected = holm([entry.test.p for entry in entries])
    return [replace(entry, p=p) for entry, p in zip(entries, corrected, strict=True)]


def rivals(groups: Groups) -> list[tuple[str, str, int]]:
    """Return (method, its baseline, number of shared seeds) per method that has a baseline."""
    # the constant is the lower bound of a table, not a method whose gain is tested
    tested = {name: group for name, group in groups.items() if group[0].spec["method"] not in CONSTANT}
    pairs = [(name, baseline_of(group[0], groups)) for name, group in tested.items()]
    seeds = {name: {r.spec.get("seed") for r in group} for name, group in groups.items()}
    return [(name, rival, len(seeds[name] & seeds[rival])) for name, rival in pairs if rival is not None]


def baseline_of(record: RunRecord, groups: Groups) -> str | None:
    """Return the baseline to compare with: the only one on this data and plan, or the one with equal settings.

    None if there is no such baseline, and for a baseline itself.
    """
    candidates = baselines(groups, data_and_plan(record))
    # a baseline is not compared with itself or another one
    if any(configuration(other) == configuration(record) for other in candidates.values()):
        return None
    if len(candidates) > 1:
        # several baselines, such as one per encoder: the rival has equal settings except for what is compared
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
    # McNemar's test compares example by example, so both must have predicted the same ones
    shared = [key for key in a if key in b and len(a[key]) == len(b[key])]
    return [value for key in shared for value in a[key]], [value for key in shared for value in b[key]]


def p_relation(p: float | None) -> str:
    """Write a p-value after its letter: `= 0.012`, `< 0.001`."""
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
    accepted = [r for group in grouped(records).values() if not is_collapsed(group) for r in group]
    groups = grouped(accepted)  # without the others, labels may be shorter
    if len({experiment(group[0]) for group in groups.values()}) != 1:
        return None
    # labels of all rows, since those of a table of one sample may be shorter
    labels = {configuration(group[0]): label for label, group in groups.items()}
    # averages are comparable among equally many rows only; 0 rows are all of them, and come first
    sizes: dict[float, list[RunRecord]] = {}
    for group in groups.values():
        sizes.setdefault(group[0].spec.get("rows") or math.inf, []).extend(group)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    best: tuple[float, Decision] | None = None  # with its gain over the constant on the same rows
    on_more_rows: set[str] = set()
    # samples have test rows of their own, some easier: what counts across them is the distance from their constants
    constants = {size: _constant(members, metric) for size, members in sizes.items()} if len(sizes) > 1 else {}
    if any(map(math.isnan, constants.values())):
        constants = {}
    # a choice on fewer rows must be better than the best so far, and be one that was not run on more rows
    for size, members in sorted(sizes.items(), key=lambda pair: -pair[0]):
        chosen = _choose(tabulate(members, metric))
        if chosen is not None:
            score, record, why, expected = chosen
            score -= constants.get(size, 0.0)
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
    average = next((row.average for row in tabulate(runs, metric).rows if row.average is not None), None)
    return math.nan if average is None else (-average.mean if metric in LOWER_IS_BETTER else average.mean)


def _choose(table: Table) -> tuple[float, RunRecord, str, float] | None:
    """Return the choice among records on equally many rows: score (higher is better), record, reason, expectation."""
    groups, metric = table.groups, table.metric
    sign = -1 if metric in LOWER_IS_BETTER else 1
    means = {row.label: row.average.mean for row in table.rows if row.average is not None}
    rows = [row for row in table.rows if math.isfinite(means.get(row.label, math.nan))]
    rows.sort(key=lambda row: -sign * means[row.label])
    if not rows:
        return None
    # rows are sorted, so this is the better one of plain training and the simple baselines
    reference = next((row for row in rows if row.baseline or row.simple), None)

    def chosen(row: Row, why: str, expected: float | None = None) -> tuple[float, RunRecord, str, float]:
        mean = means[row.label]
        return sign * mean, groups[row.label][0], why, mean if expected is None else expected

    if reference is None:
        return chosen(rows[0], f"it has the best average, which cannot be tested because {BASELINE} was not run")
    if len(rows) == 1:
        return chosen(reference, "no other configuration has complete runs on its rows")
    # methods and combinations are two families, each tested at half of the level
    tests = {}
    for combined in (False, True):
        tests |= _one_sided([row for row in rows if row.combined == combined], reference, groups, metric)
    # significance admits a row; among several the shrunk gain decides, because the largest measured one is partly luck
    gains = expected_gains(tests)
    better = [row for row in rows if row.label in gains and (p := tests[row.label].p) is not None and p < LEVEL / 2]
    if better:
        row = max(better, key=lambda row: sign * gains[row.label])
        gain = gains[row.label]
        return chosen(row, _gain_reason(row, reference, tests[row.label], gain, metric), means[reference.label] + gain)
    idle = [row.label for row in rows if row.label in tests and is_idle(groups[row.label])]
    why = _reference_reason(reference, rows, metric) + (f" (not engaged: {', '.join(idle)})" if idle else "")
    return chosen(reference, why + _untested(rows, reference, tests))


def _one_sided(candidates: Sequence[Row], reference: Row, groups: Groups, metric: str) -> dict[str, Paired]:
    """Test the candidates that share enough pairs with the reference; p is one-sided and Holm-corrected."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    pairs = {}
    for row in candidates:
        if row is not reference and not row.simple and not row.baseline:
            test = paired_over_seeds(groups[row.label], groups[reference.label], metric)
            if test is not None and test.n >= FEWEST_PAIRS and test.p is not None:
                pairs[row.label] = test
    # half of the two-sided p where the difference has the right sign, its complement otherwise
    two_sided = {label: test.p or 0.0 for label, test in pairs.items()}
    one_sided = [p / 2 if sign * pairs[label].difference > 0 else 1 - p / 2 for label, p in two_sided.items()]
    return {label: replace(test, p=p) for (label, test), p in zip(pairs.items(), holm(one_sided), strict=True)}


def paired_over_seeds(a: Iterable[RunRecord], b: Iterable[RunRecord], metric: str) -> Paired | None:
    """Paired t test over seeds and targets; a combination of all seeds is paired with the mean over the other's."""
    left, right = final_scores(a, metric), final_scores(b, metric)
    # records of a combination have no seed to pair by
    if {seed for seed, *_ in left} == {None}:
        by_target: dict[tuple[Any, str, str], list[float]] = {}
        for (_, episode, domain), score in right.items():
            by_target.setdefault((None, episode, domain), []).append(score)
        right = {key: math.fsum(scores) / len(scores) for key, scores in by_target.items()}
    return _paired(left, right)


def _gain_reason(row: Row, reference: Row, test: Paired, gain: float, metric: str) -> str:
    measured = f"measured {format_difference(test.difference, metric)} over {test.n} seed-target pairs"
    kind = "this combination of runs" if row.combined else "it"
    return (
        f"{kind} has the highest expected score of those that are significantly better than {reference.label}, "
        f"{format_difference(gain, metric)} compared with it ({measured}, p {p_relation(test.p)}, one-sided, "
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


def _untested(table: Sequence[Row], reference: Row, tests: Mapping[str, Paired]) -> str:
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
