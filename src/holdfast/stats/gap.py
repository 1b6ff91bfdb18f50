"""Cost of the shift: the gap between scores on a held-out domain and scores after training on that domain.

Headroom is the gap of the baseline. Where there is none, no method can show a gain.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.stats.labels import BASELINE, Groups, natural_key, settings_key
from holdfast.stats.statistics import Cell, pooled, summarise
from holdfast.stats.table import final_scores

IN_DOMAIN = "in-domain"  # the plan of the reference
HELD_OUT = ("leave-one-out", "leave-groups-out")  # the plans that score every domain once, by a model without it


@dataclass(frozen=True, slots=True)
class Gap:
    """Scores on one domain, held out and in-domain; a positive gap is the cost of the shift."""

    held_out: Cell
    in_domain: Cell
    gap: float
    stderr: float | None  # standard error of the gap, pooled from both


def _gaps(held_out: Iterable[RunRecord], in_domain: Iterable[RunRecord], metric: str) -> dict[str, Gap]:
    """Map each domain that both score to its gap: mean in-domain - mean held out, signed so that a loss is positive.

    The two are scored on different rows, so they are not paired and their standard errors are pooled.
    """
    unseen, seen = _scores_by_domain(held_out, metric), _scores_by_domain(in_domain, metric)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    gaps = {}
    for domain in (domain for domain in unseen if domain in seen):
        a, b = summarise(unseen[domain]), summarise(seen[domain])
        gaps[domain] = Gap(a, b, sign * (b.mean - a.mean), pooled(a, b))
    return gaps


def gaps(groups: Groups, metric: str) -> list[tuple[str, str, dict[str, Gap]]]:
    """Return (label, label of the reference, domain -> gap) per configuration of the plans in `HELD_OUT`.

    The reference is the same configuration run in-domain or, if that was not run (the method may need several
    domains), the in-domain baseline that shares all other settings.
    """
    references = [(label, group) for label, group in groups.items() if group[0].spec.get("plan") == IN_DOMAIN]
    entries = []
    for label, group in groups.items():
        if group[0].spec.get("plan") not in HELD_OUT:
            continue
        same, as_baseline = (
            [(name, runs) for name, runs in references if _share_settings(runs[0], group[0], *ignored)]
            for ignored in ((), ("method", "method_args"))
        )
        for name, reference in (same or [r for r in as_baseline if r[1][0].spec["method"] == BASELINE])[:1]:
            if by_domain := _gaps(group, reference, metric):
                entries.append((label, name, {d: by_domain[d] for d in sorted(by_domain, key=natural_key)}))
    return entries


def _share_settings(a: RunRecord, b: RunRecord, *ignored: str) -> bool:
    ignored = ("seed", "plan", "plan_args", *ignored)
    return settings_key(a.spec, *ignored) == settings_key(b.spec, *ignored)


def _scores_by_domain(records: Iterable[RunRecord], metric: str) -> dict[str, list[float]]:
    by_domain: dict[str, list[float]] = {}
    for (_, _, domain), score in final_scores(records, metric).items():
        by_domain.setdefault(domain, []).append(score)
    return by_domain


@dataclass(frozen=True, slots=True)
class Headroom:
    """Score of the baseline on data like its training data, and what it loses on a domain that it has never seen."""

    level: float
    loss: Cell
    validated: bool  # on validation rows of the training domains; else in-domain


def headroom(groups: Groups, metric: str, gaps: Sequence[tuple[str, str, dict[str, Gap]]]) -> Headroom | None:
    """Return the headroom of the baseline; None if its runs hold out no domain.

    The reference is the baseline run in-domain or, without such runs, its score on validation rows of the training
    domains, which are easier or harder than the held-out domain for other reasons too.
    """
    runs = [r for g in groups.values() for r in g if r.spec.get("plan") in HELD_OUT and r.spec["method"] == BASELINE]
    if not runs:
        return None
    for _, reference, by_domain in gaps:
        if reference.startswith(BASELINE):
            losses = summarise([gap.gap for gap in by_domain.values()])
            return Headroom(fmean(gap.in_domain.mean for gap in by_domain.values()), losses, validated=False)
    pairs = [pair for record in runs if (pair := _validated_and_tested(record, metric)) is not None]
    if not pairs:
        return None
    sign = -1 if metric in LOWER_IS_BETTER else 1
    return Headroom(fmean(a for a, _ in pairs), summarise([sign * (a - b) for a, b in pairs]), validated=True)


def _validated_and_tested(record: RunRecord, metric: str) -> tuple[float, float] | None:
    """Return the mean score on validation rows and on the held-out domain; None if one is missing."""
    stage = record.stages[-1]
    scores = [
        [s[metric] for s in stage.get(key, {}).values() if s.get(metric) is not None] for key in ("valid", "test")
    ]
    return (fmean(scores[0]), fmean(scores[1])) if all(scores) else None
