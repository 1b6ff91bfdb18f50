"""Conclusions of an audit: size and kind of the shift, what to clean, and which methods to try."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from holdfast.auditing.erasure import ALIGNMENT, Erasure
from holdfast.auditing.facts import DomainFacts, Leak
from holdfast.auditing.headroom import UNITS, ShiftCost, stratified_interval
from holdfast.auditing.shift import MIN_ROWS, Distance, LabelShift
from holdfast.core.errors import BadInput
from holdfast.spec import Spec
from holdfast.stats.formatting import MAX_NAMES, listed
from holdfast.train.resolve import exclusion_reason

LEVELS = ("no", "a slight", "a clear", "a strong")
INPUTS = (0.5, 1.2)  # A-distance of a clear and of a strong shift
LABELS = (0.1, 0.3)  # total variation distance of a clear and of a strong shift
TRIALS = {
    "both": ("erm", "cdann", "pda", "group-dro", "vrex", "swad(erm)"),
    "inputs": ("erm", "coral", "mldg", "mil", "swad(erm)"),
    "labels": ("erm", "group-dro", "vrex", "swad(erm)"),
    "meaning": ("erm", "irm", "vrex", "fishr", "mldg"),
    "none": ("erm", "swad(erm)"),
    "unknown": ("erm", "swad(erm)"),
}
SINGLE_SOURCE = ("erm", "manifold-mixup", "swad(erm)")  # methods that train on one domain
METRIC = "macro_f1"  # for imbalanced labels
TARGETS = {"tag": "row of tags", "span": "answer"}
UNCLEAR = 0.03  # an interval from zero to more than this decides nothing
WORTH = 0.01  # smallest headroom that is worth fighting


@dataclass(frozen=True)
class Verdict:
    """Size of the shift in inputs and labels, 0 to 3, and its cost for a linear classifier; None if not measured."""

    inputs: int | None
    labels: int | None
    cost: float | None  # headroom: mean over domains, as a fraction
    error: float | None
    low: float | None = None  # 95% interval of the cost
    high: float | None = None
    inside: float | None = None  # accuracy inside a domain
    outside: float | None = None  # accuracy on an unseen domain, from the same number of rows
    metric: str = "accuracy"  # or rmse in standard deviations, or micro_f1

    @property
    def costly(self) -> bool:
        """Whether there is a shift worth fighting."""
        return self.cost is not None and self.low is not None and self.low > 0 and self.cost >= WORTH

    @property
    def where(self) -> str:
        """Key of TRIALS."""
        if self.inputs or self.labels:
            return ("both" if self.labels else "inputs") if self.inputs else "labels"
        if self.inputs is None:
            return "unknown"
        return "meaning" if self.costly else "none"


def conclude(distances: Sequence[Distance], shifts: Sequence[LabelShift], costs: Sequence[ShiftCost]) -> Verdict:
    """Summarise the measurements; a shift that could occur by chance counts as none."""
    inputs = _level([distance.mean for distance in distances if distance.real], INPUTS) if distances else None
    measured = any(shift.real or shift.rows >= MIN_ROWS for shift in shifts)
    labels = _level([shift.variation for shift in shifts if shift.real], LABELS) if measured else None
    room = stratified_interval([cost.folds for cost in costs])
    if room is None:
        return Verdict(inputs, labels, None, None)
    inside, outside = (fmean(getattr(cost, name) for cost in costs) for name in ("inside", "outside"))
    return Verdict(inputs, labels, room.mean, room.stderr, room.low, room.high, inside, outside, costs[0].metric)


def _level(values: Sequence[float], bounds: Sequence[float]) -> int:
    return 0 if not values else 1 + sum(max(values) >= bound for bound in bounds)


def headline(verdict: Verdict, domains: int, *, labelled: bool) -> str:
    """Return the main finding in one or two sentences."""
    if domains < 2:
        return "There is only one domain, so no shift can be measured; duplicates and labels are listed below."
    levels = {"inputs": verdict.inputs} | ({"labels": verdict.labels} if labelled else {})
    known = [f"{LEVELS[level]} shift in the {name}" for name, level in levels.items() if level is not None]
    missing = " and ".join(f"the {name}" for name, level in levels.items() if level is None)
    sentences = [f"There is {' and '.join(known)}."] if known else []
    if missing:
        needed = f"at least {MIN_ROWS} distinct rows in two domains"
        sentences.append(f"A shift in {missing} could not be measured, which needs {needed}.")
    return " ".join(filter(None, [*sentences, headroom_sentence(verdict)]))


def headroom_sentence(verdict: Verdict) -> str:
    """State in one sentence whether there is a shift worth fighting; empty if it was not measured."""
    if verdict.cost is None or verdict.inside is None:
        return ""
    measured = (verdict.cost, verdict.low, verdict.high, verdict.inside, verdict.outside)
    cost, low, high, inside, outside = (100 * (value or 0.0) for value in measured)
    if verdict.costly:
        conclusion = "there is a shift worth fighting"
    elif high >= 100 * UNCLEAR and low <= 0:
        conclusion = "more rows are needed to show whether there is a shift worth fighting"
    else:
        conclusion = "there is no shift worth fighting: better features or more rows will help more than another method"
    unit, probe = UNITS[verdict.metric]
    return (
        f"Headroom is {cost:.1f} {unit} (95% interval {low:.1f} to {high:.1f}): {probe} "
        f"{inside:.1f} if it is trained inside a domain and {outside:.1f} if it is trained on the same number of rows "
        f"of other domains, so {conclusion}."
    )


def advise(
    spec: Spec, kind: str, verdict: Verdict, facts: Sequence[DomainFacts], leaks: Sequence[Leak],
    erasure: Erasure | None, *, clean: str | None, more_domains: str, command: Callable[[list[str], str | None], str],
    columns: Sequence[str] = (),
) -> tuple[list[str], str | None]:  # fmt: skip
    """Return what to clean, by the share of rows it concerns, then what to try; and the recommended command.

    `clean` is the file of the clean table if it was written, `more_domains` how to add domains. `command` returns the
    command for methods and a metric, or raises `BadInput` if it would fail. `columns` is the advice on columns.
    """
    advice = [*columns, *_cleaning(spec.task, kind, facts, leaks, clean), *_labels(spec.task, facts)]
    advice += _unmeasured(facts)
    if len(facts) < 2:
        return [*advice, f"To measure a shift, {more_domains}."], None
    names = trials(spec, kind, verdict.where, len(facts))
    if erasure is not None and not erasure.helps:
        names = [name for name in names if name not in ALIGNMENT]
    try:
        words = command(names, METRIC if spec.task == "classify" and _is_imbalanced(facts) else None)
    except BadInput as error:
        return [*advice, f"compare cannot run on this data yet: {error}."], None
    return [*advice, *_trial_advice(spec, verdict, len(facts)), f"Try: {words}"], words


def _cleaning(
    task: str, kind: str, facts: Sequence[DomainFacts], leaks: Sequence[Leak], clean: str | None
) -> list[str]:
    """Return what is wrong with rows, the largest share of rows first, then how to clean it."""
    rows, remaining = sum(domain.examples for domain in facts), sum(domain.kept for domain in facts)
    findings: list[tuple[float, str]] = []
    repeated = sum(domain.again for domain in facts)
    if repeated:
        effect = "they count several times, and validation rows are partly seen in training."
        findings.append((repeated / rows, f"{_of(repeated, rows)} repeat an earlier row of their domain: {effect}"))
    for leak in leaks:
        if leak.equal or leak.near:
            counts = [(leak.equal, "also in"), (leak.near, "nearly in")]
            where = " and ".join(f"{count:,} are {relation} {leak.also_in}" for count, relation in counts if count)
            text = (
                f"Of {leak.examples:,} {leak.split} rows, {where}: remove them, or scores on {leak.split} are too high."
            )
            findings.append(((leak.equal + leak.near) / leak.examples, text))
    crossing = sum(domain.elsewhere + domain.near_elsewhere for domain in facts)
    if crossing:
        effect = "a held-out domain is then partly seen in training."
        findings.append(
            (crossing / rows, f"{_of(crossing, rows)} occur, exactly or nearly, in another domain: {effect}")
        )
    conflicting = sum(domain.conflicts for domain in facts)
    if conflicting:
        text = f"{conflicting:,} rows share their input with a row of another {TARGETS.get(task, 'label')}: check them."
        findings.append((conflicting / rows, text))
    advice = [text for _, text in sorted(findings, key=lambda finding: -finding[0])]
    if remaining == rows:
        return [*advice, "There are no duplicates: nothing has to be cleaned."]
    place = "--clean FILE writes it" if clean is None else f"it is in {clean}"
    advice.append(f"A table without duplicates has {remaining:,} of {rows:,} rows: {place}.")
    if kind in ("vector", "table", "graph") and remaining < 0.8 * rows:
        advice.append("Small graphs, and few or coarse numbers, can be equal by chance: keep such rows.")
    return advice


def _of(count: int, rows: int) -> str:
    share = count / rows
    return f"{count:,} of {rows:,} rows" + (f" ({share:.0%})" if share >= 0.01 else "")


def _labels(task: str, facts: Sequence[DomainFacts]) -> list[str]:
    labelled = [domain for domain in facts if any(domain.labels.values())]
    absent = {d.domain: [label for label, count in d.labels.items() if not count] for d in labelled}
    missing = [f"{domain} ({', '.join(labels[:MAX_NAMES])})" for domain, labels in absent.items() if labels]
    advice = []
    if missing:
        where = listed(missing, what=" domains")
        advice.append(f"Some labels are missing: {where}. No method can learn them from there.")
    if task == "classify" and _is_imbalanced(facts):
        advice.append(f"Labels are very imbalanced: accuracy hides the rare ones, so use --metric {METRIC}.")
    sizes = [domain.examples for domain in facts]
    if max(sizes) >= 10 * min(sizes):
        rows = f"{min(sizes):,} to {max(sizes):,} rows"
        advice.append(f"Domains differ in size, {rows}: batches sample all domains equally.")
    return advice


def _is_imbalanced(facts: Sequence[DomainFacts]) -> bool:
    counts = [sum(domain.labels[label] for domain in facts) for label in facts[0].labels]
    return bool(counts) and min(counts) > 0 and max(counts) >= 10 * min(counts)


def _unmeasured(facts: Sequence[DomainFacts]) -> list[str]:
    """Name the domains that are too small for distances, if the distances of others were measured."""
    small = [domain.domain for domain in facts if domain.kept < MIN_ROWS]
    if not small or len(facts) - len(small) < 2:
        return []
    return [f"Distances were not measured for domains with fewer than {MIN_ROWS} distinct rows: {listed(small)}."]


def _trial_advice(spec: Spec, verdict: Verdict, domains: int) -> list[str]:
    advice = []
    if (verdict.labels or 0) > 1 and not exclusion_reason("cdann", spec, domains - 1):
        advice.append(
            "Methods that align the features of complete domains (coral, mmd, dann) confuse classes if label "
            "distributions differ; cdann and pda align per class."
        )
    if verdict.where == "meaning":
        advice.append("Inputs and labels have similar distributions, but their relation differs between domains.")
    if verdict.where == "none":
        advice.append("Plain training on all domains will probably suffice; weight averaging is cheap to try.")
    return advice


def trials(spec: Spec, kind: str, where: str, domains: int) -> list[str]:
    """Return methods suited to this shift that work with the task, the encoder and the number of domains."""
    names: list[str] = [*(TRIALS[where] if domains > 2 else SINGLE_SOURCE)]
    if where in ("inputs", "both") and domains > 2 and kind in ("image", "graph"):
        names.insert(-1, "hma")
    return [name for name in names if not exclusion_reason(name, spec, domains - 1)]
