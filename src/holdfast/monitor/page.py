"""Tables and figures of `holdfast watch` for the terminal and the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.monitor.check import FOREIGN, BatchCheck
from holdfast.report.axes import Axis
from holdfast.report.marks import Errors, Mark, Points, Stroke
from holdfast.report.plots import COLOURS, Plot
from holdfast.report.sections import Cell
from holdfast.report.terminal import Grid

MAX_FINDINGS = 20
EMPTY: Cell = ("", None)


def batch_grid(checks: Sequence[BatchCheck]) -> Grid:
    """One line per batch and domain: drift, foreign examples, estimated and true accuracy."""
    about = (
        "p: smallest corrected p value of all tests of the batch. foreign: share of examples whose distance to the "
        f"training data is above the percentile {FOREIGN:g}. accuracy: estimate without labels with its 90% interval. "
        "unseen: 0 for a batch like the training domains, 1 for one that differs from them as they differ from one "
        "another. true: accuracy on labelled examples (root mean squared error of a regression)."
    )
    names = ("batch", "rows", "drift", "p", "foreign", "accuracy", "unseen", "true")
    return Grid("Batches", about, names, [(check.name, _cells(check)) for check in checks])


def _cells(check: BatchCheck) -> list[Cell]:
    own = check.accuracy
    drift = check.note or (f"{len(check.drifted)} of {len(check.findings)} tests" if check.drifted else "no")
    accuracy = EMPTY
    if own is not None:
        ends = "" if own.low is None else f" ({own.low:.3f} to {own.high:.3f})"
        accuracy = (f"{own.estimate:.3f}{ends}", own.estimate)
    return [
        (f"{check.rows:,}", check.rows),
        (drift, None),
        _number(min((finding.corrected for finding in check.findings), default=None), ".2g"),
        _number(check.foreign, ".1%"),
        accuracy,
        _number(None if own is None else own.unseen, ".2f"),
        EMPTY if check.true is None else (f"{check.true:.3f} (n={check.labelled})", check.true),
    ]


def _number(value: float | None, form: str) -> Cell:
    return EMPTY if value is None else (format(value, form), value)


def finding_grid(check: BatchCheck) -> Grid:
    """Tests of one batch, the most significant first."""
    ordered = sorted(check.findings, key=lambda finding: (finding.corrected, finding.p))[:MAX_FINDINGS]
    lines = []
    for finding in ordered:
        cells = [_number(value, ".4g") for value in (finding.statistic, finding.value, finding.expected)]
        cells += [_number(finding.corrected, ".2g"), ("yes" if finding.drifted else "", None)]
        lines.append((finding.name, cells))
    about = (
        f"Compared with {check.compared_with}. Statistic: maximum mean discrepancy of features, total variation of "
        "classes, distance of Kolmogorov and Smirnov of numbers, difference of shares."
    )
    return Grid(f"Tests of {check.name}", about, ("test", "statistic", "batch", "expected", "p", "drift"), lines)


def example_grid(check: BatchCheck) -> Grid:
    """Examples that are most typical of the batch and least typical of the reference."""
    keys = [key for key in ("prediction", "confidence", "foreign", "drift", "input") if key in check.examples[0]]
    lines: list[tuple[str, list[Cell]]] = [
        (str(example.get("id", example.get("row"))), [(str(example[key]), None) for key in keys])
        for example in check.examples
    ]
    about = "Examples that are common in the batch and rare among the held-out examples of the model."
    return Grid(f"Most drifted examples of {check.name}", about, ("id", *keys), lines, words=True)


def timeline(history: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Draw accuracy and drift over the batches of the history; one pair (title, figure) per figure."""
    domains = list(dict.fromkeys(entry["domain"] for entry in history))
    figures = [("Accuracy over time", _accuracy(history, domains)), ("Drift over time", _drift(history, domains))]
    return [(title, figure) for title, figure in figures if figure]


def _accuracy(history: Sequence[dict[str, Any]], domains: Sequence[str | None]) -> str:
    marks: list[Mark] = []
    for index, domain in enumerate(domains):
        entries = [e for e in history if e["domain"] == domain and e["accuracy"] is not None]
        colour, name = COLOURS[index % len(COLOURS)], domain or "all"
        if not entries:
            continue
        own = [e["accuracy"] for e in entries]
        known = [a["low"] is not None for a in own]
        errors = Errors(
            [a["high"] - a["estimate"] if k else 0 for a, k in zip(own, known, strict=True)],
            [a["estimate"] - a["low"] if k else 0 for a, k in zip(own, known, strict=True)],
        )
        x, estimates = [_place(e) for e in entries], [a["estimate"] for a in own]
        marks.append(Points(
            x, estimates, _tips(x, estimates), name=f"{name}, estimated", colour=colour, errors=errors,
            line=Stroke(colour),
        ))  # fmt: skip
        true = [e for e in entries if e["true"] is not None]
        if true:
            x, scores = [_place(e) for e in true], [e["true"] for e in true]
            marks.append(Points(
                x, scores, _tips(x, scores), name=f"{name}, true", colour=colour, symbol="x", size=10,
            ))  # fmt: skip
    if not marks:
        return ""
    return Plot(*marks, x=Axis(names=()), y=Axis("accuracy")).html("watch-accuracy", height=360)


def _tips(places: Sequence[str], values: Sequence[float]) -> list[str]:
    return [f"{place}: {value:.3f}" for place, value in zip(places, values, strict=True)]


def _drift(history: Sequence[dict[str, Any]], domains: Sequence[str | None]) -> str:
    marks = []
    for index, domain in enumerate(domains):
        entries = [e for e in history if e["domain"] == domain and e["discrepancy"] is not None]
        if not entries:
            continue
        colour, x = COLOURS[index % len(COLOURS)], [_place(e) for e in entries]
        states = [", ".join(e["drifted"][:5]) or "no drift" for e in entries]
        tips = [f"{p}: {e['discrepancy']:.4f}, {s}" for p, e, s in zip(x, entries, states, strict=True)]
        marks.append(Points(
            x, [e["discrepancy"] for e in entries], tips, name=domain or "all", colour=colour,
            size=[11 if e["drifted"] else 6 for e in entries], line=Stroke(colour),
        ))  # fmt: skip
    if not marks:
        return ""
    y = Axis("squared discrepancy of features")
    return Plot(*marks, x=Axis(names=()), y=y).html("watch-drift", height=320)


def _place(entry: dict[str, Any]) -> str:
    """Name a batch on the axis; batches of different data may have equal names."""
    return f"{entry['batch']} ({entry['data'][:4]})"
