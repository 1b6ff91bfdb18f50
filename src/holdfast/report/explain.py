"""Recommend a row of a comparison in one paragraph: what to expect, on which basis, what was not tried, and why."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import catalog
from holdfast.catalog.methods import METHODS
from holdfast.core.errors import BadInput
from holdfast.record import LOWER_IS_BETTER
from holdfast.stats.decision import Decision
from holdfast.stats.formatting import format_number, is_percent, spelled
from holdfast.stats.labels import BASELINE, COMBINED, CONSTANT, SIMPLE
from holdfast.stats.summary import Summary
from holdfast.stats.table import Row

KINDS = {"simple": "a simple baseline", "combined": "a combination of trained models", "baseline": "plain training"}


def recommendation(summary: Summary) -> str:
    """Return the choice with its reason in one paragraph, or why there is none."""
    if summary.mixed:
        return "The records come from several data sets or plans, so no method is recommended."
    if summary.decision is not None:
        return f"{explain(summary)} It is recommended because {summary.decision.why}."
    if any(row.average is not None for row in summary.competing.rows):
        return "No method is recommended, because the predictions of all finished runs collapsed to few classes."
    return "No method has finished every target domain yet; the table shows the completed runs."


def explain(summary: Summary) -> str:
    """Return two sentences about the chosen row, then one about what was not tried; empty without a choice.

    Plain training on another number of rows than the choice is not compared with it.
    """
    decision, metric, groups = summary.decision, summary.metric, summary.competing.groups
    if decision is None:
        return ""
    table = {row.label: row for row in summary.competing.rows if row.average is not None}
    same = {label for label, group in groups.items() if _rows(group[0].spec) == _rows(decision.spec)}
    baseline = next((row for label, row in table.items() if row.baseline and label in same), None)
    row, specs = table[decision.label], [record.spec for group in groups.values() for record in group]
    return " ".join(
        [_expectation(row, baseline, decision, metric), _basis(row, table, metric), not_tried(specs)]
    ).strip()


def _rows(spec: Mapping[str, Any]) -> int:
    return int(spec.get("rows") or 0)


def _expectation(row: Row, baseline: Row | None, decision: Decision, metric: str) -> str:
    """State the expected score and the gain over plain training."""
    assert row.average is not None
    mean = row.average.mean if decision.expected is None else decision.expected
    name = f"{row.label}, which ignores the input," if row.label in CONSTANT else row.label
    text = f"On data from a new domain, expect {name} to reach about {_score(mean, metric)}"
    if baseline is None or baseline.average is None or row.label == baseline.label:
        return f"{text}."
    difference = abs(mean - baseline.average.mean)
    better = (mean < baseline.average.mean) == (metric in LOWER_IS_BETTER)
    unit, word = " points" if is_percent(metric) else "", "better" if better else "worse"
    return f"{text}, {format_number(difference, metric)}{unit} {word} than plain training ({baseline.label})."


def _basis(row: Row, table: dict[str, Row], metric: str) -> str:
    """State what the expectation rests on."""
    assert row.average is not None
    domains = "pair of domains" if row.paired else "domain"
    count = f"{len(row.cells)} {domains}{'s' if len(row.cells) > 1 and not row.paired else ''}"
    kind = next((text for name, text in KINDS.items() if getattr(row, name)), "a training method")
    text = f"It is {kind}, chosen among {len(table)} candidates that were tested on {count} they had never seen"
    if row.worst is None:
        return f"{text}."
    return f"{text}; its weakest was {row.worst[0]} with {_score(row.worst[1], metric)}."


def not_tried(specs: Sequence[Mapping[str, Any]]) -> str:
    """Name what the comparison left out; empty if nothing is known to be missing."""
    trained = [spec for spec in specs if str(spec["method"]) not in (*SIMPLE, *COMBINED)]
    if not trained:
        return ""
    missing = []
    encoders = list(dict.fromkeys(str(spec.get("encoder")) for spec in trained))
    if all(spec.get("tune") == "frozen" for spec in trained):
        missing.append("training the encoder as well (--tune full)")
    tried = {str(spec["method"]) for spec in trained}
    others = [name for name in _suitable(trained[0]) if not any(name == t or f"({name})" in t for t in tried)]
    if others:
        plural = "s" if len(others) > 1 else ""
        missing.append(f"{len(others)} other method{plural} (--methods all), such as {', '.join(others[:3])}")
    missing.append(f"encoders other than {' and '.join(encoders)} (--encoder)")
    return f"Not tried: {'; '.join(missing)}."


def _suitable(spec: Mapping[str, Any]) -> list[str]:
    """Return the methods without wrappers that support the task and the encoder of a run, without those of streams."""
    try:
        kind = catalog.lookup("encoders", str(spec.get("encoder"))).takes
    except BadInput:  # an encoder of a plug-in that is not installed
        return []
    return [
        name for name, entry in METHODS.items()
        if name not in (*SIMPLE, BASELINE) and "(" not in name and entry.acts_on != "stream"
        and not entry.unsupported(str(spec.get("task"))) and entry.takes in ("", kind)
    ]  # fmt: skip


def _score(value: float, metric: str) -> str:
    return f"{format_number(value, metric)}{'%' if is_percent(metric) else ''} {spelled(metric)}"
