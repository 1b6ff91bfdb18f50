"""What the shift costs: the worst domain, and how far an unseen domain stays behind one that was trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.core.errors import BadInput
from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.labels import BASELINE, grouped, natural
from holdfast.report.statistics import Cell, pooled, summarise

INSIDE = "in-domain"  # the plan of the reference
RULE = ("method", "method_args")


@dataclass(frozen=True, slots=True)
class Gap:
    """One domain when it is left out and when it is trained on; a positive gap is what the shift costs."""

    left_out: Cell
    inside: Cell
    gap: float
    stderr: float | None  # standard error of the gap, pooled from both


def worst_domain(means: Mapping[str, float], metric: str) -> tuple[str, float]:
    """The domain with the worst mean, and that mean."""
    assert means, "no domain"
    pick = max if metric in LOWER_IS_BETTER else min
    return pick(means.items(), key=lambda pair: pair[1])


def in_domain_gap(left_out: Iterable[RunRecord], inside: Iterable[RunRecord], metric: str) -> dict[str, Gap]:
    """Domain -> gap between in-domain records and leave-one-out records of one method on the same data.

    gap = mean inside - mean left out (turned round where lower is better). The two are scored on different rows, the
    whole domain and its held-out rows, so they are not paired; their standard errors are pooled.
    """
    left, own = list(left_out), list(inside)
    prints = {str(r.spec.get("fingerprint")) for r in (*left, *own)}
    if len(prints) > 1:
        raise BadInput(f"a gap needs records of the same data, these come from {len(prints)} data sets")
    for name, records in (("leave-one-out", left), ("in-domain", own)):
        methods = {str(r.spec["method"]) for r in records}
        if len(methods) != 1:
            raise BadInput(f"a gap needs {name} records of one method, here are {len(methods)}")
    unseen, seen = _by_domain(left, metric), _by_domain(own, metric)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    found = {}
    for domain in unseen:
        if domain in seen:
            a, b = summarise(unseen[domain]), summarise(seen[domain])
            found[domain] = Gap(a, b, sign * (b.mean - a.mean), pooled(a, b))
    if not found:
        raise BadInput(f"no domain is scored with {metric} both left out and inside: run both plans on all domains")
    return found


def gaps(records: Iterable[RunRecord], metric: str) -> list[tuple[str, str, dict[str, Gap]]]:
    """(label, label of its reference, domain -> gap) for every configuration that was run with a domain left out.

    The reference is the same configuration inside each domain or, where its rule was not run there, for instance since
    it needs several domains, the baseline's that shares all other settings.
    """
    groups = grouped(records)
    inside = [(label, group) for label, group in groups.items() if group[0].spec.get("plan") == INSIDE]
    found = []
    for label, group in groups.items():
        if group[0].spec.get("plan") != "leave-one-out":
            continue
        same = [each for each in inside if _like(each[1][0]) == _like(group[0])]
        usual = [
            each for each in inside
            if each[1][0].spec["method"] == BASELINE and _like(each[1][0], *RULE) == _like(group[0], *RULE)
        ]  # fmt: skip
        for name, own in (same or usual)[:1]:
            if _by_domain(group, metric).keys() & _by_domain(own, metric).keys():
                by_domain = in_domain_gap(group, own, metric)
                found.append((label, name, {domain: by_domain[domain] for domain in sorted(by_domain, key=natural)}))
    return found


def _like(record: RunRecord, *but: str) -> str:
    """All settings but the seed, the plan and those named."""
    left = ("seed", "plan", "plan_args", *but)
    return json.dumps({k: v for k, v in record.spec.items() if k not in left}, sort_keys=True)


def _by_domain(records: Iterable[RunRecord], metric: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for record in {r.id: r for r in records}.values():
        for domain, scores in record.stages[-1]["test"].items():
            value = scores.get(metric)
            if value is not None:
                found.setdefault(domain, []).append(float(value))
    return found
