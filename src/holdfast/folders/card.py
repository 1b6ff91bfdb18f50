"""Model cards: the README of a model folder, written from its record."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import catalog
from holdfast.folders.hub import header
from holdfast.record import RunRecord
from holdfast.uncertainty.conformal import LEVEL, measure
from holdfast.uncertainty.left_out import LeftOut


def to_predict(spec: Mapping[str, Any]) -> str:
    """Return a placeholder for the input of `holdfast predict`."""
    return "IMAGES/" if catalog.lookup("encoders", str(spec["encoder"])).takes == "image" else "NEW.csv"


def card(
    name: str, classes: Sequence[str], record: RunRecord, *, members: Sequence[tuple[float, Mapping[str, str]]] = (),
    left_out: LeftOut | None = None,
) -> str:  # fmt: skip
    """Return the card: training data, scores on held-out rows of the training domains, members, and usage.

    With outputs of left-out domains, it also has the coverage of prediction sets there.
    """
    spec, stage = record.spec, record.stages[-1]
    metric = spec["metric"]
    sizes = {domain: count for trained in record.stages for domain, count in trained["sizes"]["train"].items()}
    lines = [
        f"| {domain} | {sizes.get(domain, 0)} | {scores[metric]:.3f} |"
        for domain, scores in {**stage["test"], **stage["valid"]}.items()
        if scores[metric] is not None
    ]
    labels = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
    task = catalog.lookup("tasks", str(spec.get("task", "classify")))
    kind = task.card.format(count=len(classes), labels=labels)
    neck = "" if spec.get("neck") in (None, "none") else f" and neck `{spec['neck']}`"
    average = "" if not members else _members_text(members)
    if len(seeds := record.analysis.get("soup", {}).get("averaged", [])) > 1:
        average = f"\nIts weights are the mean of the networks of the seeds {', '.join(map(str, seeds))}.\n"
    takes = catalog.lookup("encoders", str(spec["encoder"])).takes
    return f"""{header(spec, takes)}
# {name}

{kind}, trained by Holdfast {record.code["version"]} with method
`{spec["method"]}`{neck} on encoder `{spec["encoder"]}` ({spec["tune"]}).
{average}
Data: {spec["data"]} (content {spec["fingerprint"]}), seed {spec["seed"]}; step {stage["step"]} of {spec["steps"]} was
selected by {spec["select"]}.

| domain | training examples | {metric} on held-out rows of the domain |
|---|---|---|
{chr(10).join(lines)}

These scores are for the training domains. For unseen domains, see `holdfast compare`.
{_coverage_text(spec, left_out)}
```bash
holdfast predict {name} {to_predict(spec)} --out predictions.csv
```
"""


def _coverage_text(spec: Mapping[str, Any], left_out: LeftOut | None) -> str:
    """Describe the coverage of prediction sets on left-out domains; empty if it was not measured."""
    ordered = spec.get("task") == "ordinal"
    measured = [] if left_out is None else measure(left_out, LEVEL, ordered=ordered)
    if not measured:
        return ""
    size = "mean interval width" if spec.get("task") == "regress" else "mean labels per set"
    lines = [f"| {each.domain} | {each.examples} | {each.coverage:.3f} | {each.size:.4g} |" for each in measured]
    return f"""
Prediction sets with a nominal coverage of {LEVEL:g} (`--coverage {LEVEL:g}`), for each domain with a model that was not
trained on it and thresholds of the other domains:

| domain | examples | measured coverage | {size} |
|---|---|---|---|
{chr(10).join(lines)}
"""


def _members_text(members: Sequence[tuple[float, Mapping[str, str]]]) -> str:
    """Describe a weighted average; the first member is the network that the rest of the card describes."""
    lines = [f"| {weight:.2f} | {each['method']} | {each['encoder']} | {each['neck']} |" for weight, each in members]
    return f"""
Its probabilities are the weighted average of {len(members)} models. The other models are in `members`; the rest of this
card describes the first one.

| weight | method | encoder | neck |
|---|---|---|---|
{chr(10).join(lines)}
"""
