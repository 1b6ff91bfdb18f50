"""Is there a shift, is it in the inputs or in the labels, what to clean first, and which methods are worth a trial."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.audit.facts import DomainFacts, Leak
from holdfast.audit.shift import LEAST, Apart, Distance, Quick
from holdfast.run.resolve import exclusion_reason
from holdfast.spec import Spec

LEVELS = ("no", "a slight", "a clear", "a strong")
INPUTS = (0.5, 1.2)  # A-distance from which a shift is clear, and strong
LABELS = (0.1, 0.3)  # the same of the total variation
TRIALS = {
    "both": ("erm", "cdann", "pda", "group-dro", "vrex", "swad(erm)"),
    "inputs": ("erm", "coral", "mldg", "mil", "swad(erm)"),
    "labels": ("erm", "group-dro", "vrex", "swad(erm)"),
    "meaning": ("erm", "irm", "vrex", "fishr", "mldg"),
    "none": ("erm", "swad(erm)"),
    "unknown": ("erm", "swad(erm)"),
}
WITH_ONE = ("erm", "manifold-mixup", "swad(erm)")  # what trains on a single domain


TARGETS = {"tag": "row of tags", "span": "answer"}


@dataclass(frozen=True)
class Verdict:
    """How large the shift is in the inputs and in the labels, 0 to 3, and what it costs a linear classifier.

    None is what could not be measured, for want of rows or of labels.
    """

    inputs: int | None
    labels: int | None
    cost: float | None  # mean over domains, as a share
    error: float | None

    @property
    def costly(self) -> bool:
        return self.cost is not None and self.error is not None and self.cost > max(3 * self.error, 0.01)

    @property
    def where(self) -> str:
        """Which of the lists of trials suits."""
        if self.inputs and self.labels:
            return "both"
        if self.inputs or self.labels:
            return "inputs" if self.inputs else "labels"
        if self.inputs is None:
            return "unknown"
        return "meaning" if self.costly else "none"


def judge(distances: Sequence[Distance], shifts: Sequence[Apart], quick: Sequence[Quick]) -> Verdict:
    """From what was measured; a shift that chance could give counts as none."""
    inputs = _level([each.mean for each in distances if each.real], INPUTS) if distances else None
    told = any(each.real or each.rows >= LEAST for each in shifts)
    labels = _level([each.variation for each in shifts if each.real], LABELS) if told else None
    if not quick:
        return Verdict(inputs, labels, None, None)
    cost = sum(each.cost for each in quick) / len(quick)
    return Verdict(inputs, labels, cost, math.sqrt(sum(each.error**2 for each in quick)) / len(quick))


def _level(values: Sequence[float], bounds: Sequence[float]) -> int:
    return 0 if not values else 1 + sum(max(values) >= bound for bound in bounds)


def headline(verdict: Verdict, domains: int, *, labelled: bool) -> str:
    """The finding in a sentence or two."""
    if domains < 2:
        return "There is one domain, so there is no shift to look for; copies and labels are told below."
    both = {"inputs": verdict.inputs} | ({"labels": verdict.labels} if labelled else {})
    known = [f"{LEVELS[level]} shift in the {name}" for name, level in both.items() if level is not None]
    lacking = " and ".join(f"the {name}" for name, level in both.items() if level is None)
    few = f"Whether there is a shift in {lacking} could not be measured: that needs {LEAST} different rows or more in"
    told = [f"There is {' and '.join(known)}."] if known else []
    found = " ".join([*told, *([f"{few} each of two domains."] if lacking else [])])
    if verdict.cost is None or verdict.error is None:
        return found
    points = f"{100 * verdict.cost:.1f} ± {100 * verdict.error:.1f} points of accuracy"
    if verdict.costly:
        return f"{found} It costs a linear classifier {points} on a domain that it has not seen."
    if verdict.cost < 0:
        return f"{found} A linear classifier loses nothing on a domain that it has not seen ({points})."
    return f"{found} A linear classifier loses {points} on a domain that it has not seen, which is little or chance."


def advise(
    given: str, spec: Spec, kind: str, verdict: Verdict, facts: Sequence[DomainFacts], leaked: Sequence[Leak], more: str
) -> list[str]:
    """What to clean, then what to try; `given` is the data as a command line names it, `more` how it gets domains.

    `spec` is what a comparison of this data would run unless told otherwise.
    """
    trials = _trials(given, spec, kind, verdict, len(facts), more)
    return [*_cleaning(spec.task, kind, facts, leaked), *_labels(facts), *_left_out(facts), *trials]


def _cleaning(task: str, kind: str, facts: Sequence[DomainFacts], leaked: Sequence[Leak]) -> list[str]:
    found = []
    for leak in leaked:
        if leak.equal or leak.near:
            both = [(leak.equal, "are also in"), (leak.near, "are nearly in")]
            told = " and ".join(f"{count:,} {how} {leak.also_in}" for count, how in both if count)
            found.append(
                f"Of {leak.examples:,} {leak.split} rows {told}: scores on {leak.split} look better than they are "
                "until these are gone."
            )
    crossing = sum(each.elsewhere + each.near_elsewhere for each in facts)
    if crossing:
        found.append(f"{crossing:,} rows are, or nearly are, in another domain too: leaving one out still shows them.")
    conflicting = sum(each.conflicts for each in facts)
    if conflicting:
        target = TARGETS.get(task, "label")
        found.append(f"{conflicting:,} rows share their input with a row of another {target}: look at these first.")
    rows, kept = sum(each.examples for each in facts), sum(each.kept for each in facts)
    if kept < rows:
        found.append(f"A table without copies has {kept:,} of {rows:,} rows: --clean FILE writes it.")
        if kind in ("vector", "graph") and kept < 0.8 * rows:
            found.append("Small graphs, or few or coarse numbers, are equal by chance, too: then keep such rows.")
    else:
        found.append("No row is there twice: nothing has to be cleaned.")
    return found


def _labels(facts: Sequence[DomainFacts]) -> list[str]:
    absent = [f"{each.domain} ({', '.join(gone[:5])})" for each in facts if (gone := _missing(each))]
    found = []
    if absent:
        more = f" and {len(absent) - 5} more domains" if len(absent) > 5 else ""
        found.append(f"Some labels are missing: {', '.join(absent[:5])}{more}. No method can learn them from there.")
    counts = [sum(each.labels[label] for each in facts) for label in facts[0].labels]
    if counts and min(counts) and max(counts) >= 10 * min(counts):
        found.append("Labels are very uneven: tell results with --metric macro_f1 or balanced_accuracy.")
    sizes = [each.examples for each in facts]
    if max(sizes) >= 10 * min(sizes):
        found.append(f"Domains are very uneven, {min(sizes):,} to {max(sizes):,} rows: batches take the same of each.")
    return found


def _left_out(facts: Sequence[DomainFacts]) -> list[str]:
    """Domains whose inputs were not measured, where those of others were."""
    small = [each.domain for each in facts if each.kept < LEAST]
    if not small or len(facts) - len(small) < 2:
        return []
    names = ", ".join(small[:5]) + (f" and {len(small) - 5} more" if len(small) > 5 else "")
    return [f"How far inputs lie apart was not measured for domains of fewer than {LEAST} different rows: {names}."]


def _missing(facts: DomainFacts) -> list[str]:
    return [label for label, count in facts.labels.items() if not count] if any(facts.labels.values()) else []


def _trials(given: str, spec: Spec, kind: str, verdict: Verdict, domains: int, more: str) -> list[str]:
    if domains < 2:
        return [f"To look for a shift, {more}."]
    found = []
    if (verdict.labels or 0) > 1 and not exclusion_reason("cdann", spec, domains - 1):
        found.append(
            "Rules that make the features of whole domains alike (coral, mmd, dann) mix up classes where label shares "
            "differ; cdann and pda go class by class."
        )
    if verdict.where == "meaning":
        found.append("Inputs and labels look alike by themselves, yet how they go together differs between domains.")
    if verdict.where == "none":
        found.append("Plain training on all domains will most likely do; a simple average of weights is cheap to try.")
    names = trials(spec, kind, verdict.where, domains)
    plain = "" if spec.task == "classify" else f" --task {spec.task}"
    found.append(f"Worth a trial: holdfast compare {given}{plain} --methods {shlex.quote(','.join(names))}")
    return found


def trials(spec: Spec, kind: str, where: str, domains: int) -> list[str]:
    """Methods that serve this task, kind and number of domains, and can act on the encoder as it is tuned."""
    names: list[str] = [*(TRIALS[where] if domains > 2 else WITH_ONE)]
    if where in ("inputs", "both") and domains > 2 and kind in ("image", "graph"):
        names.insert(-1, "hma")
    return [name for name in names if not exclusion_reason(name, spec, domains - 1)]
