"""Cost of the shift: the gap between scores on a held-out domain and scores after training on that domain."""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.errors import BadInput
from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.labels import BASELINE, grouped, natural_key, settings_key
from holdfast.report.statistics import Cell, pooled, summarise

IN_DOMAIN = "in-domain"  # the plan of the reference


@dataclass(frozen=True, slots=True)
class Gap:
    """Scores on one domain, held out and in-domain; a positive gap is the cost of the shift."""

    held_out: Cell
    in_domain: Cell
    gap: float
    stderr: float | None  # standard error of the gap, pooled from both


def in_domain_gap(held_out: Iterable[RunRecord], in_domain: Iterable[RunRecord], metric: str) -> dict[str, Gap]:
    """Map domain to the gap between in-domain and leave-one-out records of one method on the same data.

    gap = mean in-domain - mean held out, with the sign reversed for metrics where lower is better. The two are scored
    on different rows (held-out rows, the complete domain), so they are not paired and their standard errors are pooled.
    """
    held_out, in_domain = list(held_out), list(in_domain)
    fingerprints = {str(r.spec.get("fingerprint")) for r in (*held_out, *in_domain)}
    if len(fingerprints) > 1:
        raise BadInput(f"the in-domain gap needs records of one data set; got {len(fingerprints)} data sets")
    for name, records in (("leave-one-out", held_out), ("in-domain", in_domain)):
        methods = {str(r.spec["method"]) for r in records}
        if len(methods) != 1:
            raise BadInput(f"the in-domain gap needs {name} records of one method; got {len(methods)} methods")
    unseen, seen = _scores_by_domain(held_out, metric), _scores_by_domain(in_domain, metric)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    gaps = {}
    for domain in unseen:
        if domain in seen:
            a, b = summarise(unseen[domain]), summarise(seen[domain])
            gaps[domain] = Gap(a, b, sign * (b.mean - a.mean), pooled(a, b))
    if not gaps:
        raise BadInput(f"no domain has {metric} both held out and in-domain: run both plans on all domains")
    return gaps


def gaps(records: Iterable[RunRecord], metric: str) -> list[tuple[str, str, dict[str, Gap]]]:
    """Return (label, label of the reference, domain -> gap) per configuration of the plan leave-one-out.

    The reference is the same configuration run in-domain or, if that was not run (the method may need several
    domains), the in-domain baseline that shares all other settings.
    """
    groups = grouped(records)
    references = [(label, group) for label, group in groups.items() if group[0].spec.get("plan") == IN_DOMAIN]
    entries = []
    for label, group in groups.items():
        if group[0].spec.get("plan") != "leave-one-out":
            continue
        same, as_baseline = (
            [(name, runs) for name, runs in references if _share_settings(runs[0], group[0], *ignored)]
            for ignored in ((), ("method", "method_args"))
        )
        for name, reference in (same or [r for r in as_baseline if r[1][0].spec["method"] == BASELINE])[:1]:
            if _scores_by_domain(group, metric).keys() & _scores_by_domain(reference, metric).keys():
                by_domain = in_domain_gap(group, reference, metric)
                entries.append((label, name, {d: by_domain[d] for d in sorted(by_domain, key=natural_key)}))
    return entries


def _share_settings(a: RunRecord, b: RunRecord, *ignored: str) -> bool:
    ignored = ("seed", "plan", "plan_args", *ignored)
    return settings_key(a.spec, *ignored) == settings_key(b.spec, *ignored)


def _scores_by_domain(records: Iterable[RunRecord], metric: str) -> dict[str, list[float]]:
    by_domain: dict[str, list[float]] = {}
    for record in {r.id: r for r in records}.values():
        for domain, scores in record.stages[-1]["test"].items():
            if (value := scores.get(metric)) is not None:
                by_domain.setdefault(domain, []).append(float(value))
    return by_domain
