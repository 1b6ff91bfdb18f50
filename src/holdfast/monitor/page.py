"""Tables and figures of `holdfast watch` for the terminal and the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from holdfast.monitor.check import FOREIGN, BatchCheck
from holdfast.report.plots import COLOURS, escape, to_html
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
    figures = []
    for title, key, draw, axis, name, height in (
        ("Accuracy over time", "accuracy", _accuracy, "accuracy", "watch-accuracy", 360),
        ("Drift over time", "discrepancy", _drift, "squared discrepancy of features", "watch-drift", 320),
    ):
        figure = go.Figure()
        for index, domain in enumerate(dict.fromkeys(entry["domain"] for entry in history)):
            entries = [e for e in history if e["domain"] == domain and e[key] is not None]
            if entries:
                draw(figure, entries, escape(domain or "all"), COLOURS[index % len(COLOURS)])
        if figure.data:
            figure.update_xaxes(type="category")
            figure.update_yaxes(title=axis)
            figures.append((title, to_html(figure, name, height=height)))
    return figures


def _accuracy(figure: go.Figure, entries: Sequence[dict[str, Any]], name: str, colour: str) -> None:
    """Add the estimates of a domain with their intervals, and the true accuracies."""
    own = [e["accuracy"] for e in entries]
    ends = [(a["low"], a["high"]) if a["low"] is not None else (a["estimate"], a["estimate"]) for a in own]
    errors = {
        "type": "data", "symmetric": False, "thickness": 1.5, "width": 4,
        "array": [high - a["estimate"] for a, (_, high) in zip(own, ends, strict=True)],
        "arrayminus": [a["estimate"] - low for a, (low, _) in zip(own, ends, strict=True)],
    }  # fmt: skip
    hover = "%{x}: %{y:.3f}<extra>%{fullData.name}</extra>"
    figure.add_scatter(
        name=f"{name}, estimated", x=list(map(_place, entries)), y=[a["estimate"] for a in own], error_y=errors,
        mode="lines+markers", line={"color": colour}, hovertemplate=hover,
    )  # fmt: skip
    true = [e for e in entries if e["true"] is not None]
    if true:
        figure.add_scatter(
            name=f"{name}, true", x=list(map(_place, true)), y=[e["true"] for e in true], mode="markers",
            marker={"color": colour, "symbol": "x", "size": 10}, hovertemplate=hover,
        )  # fmt: skip


def _drift(figure: go.Figure, entries: Sequence[dict[str, Any]], name: str, colour: str) -> None:
    """Add the discrepancies of a domain; drifted batches are larger."""
    figure.add_scatter(
        name=name, x=list(map(_place, entries)), y=[e["discrepancy"] for e in entries], mode="lines+markers",
        line={"color": colour}, marker={"size": [11 if e["drifted"] else 6 for e in entries], "color": colour},
        customdata=[escape(", ".join(e["drifted"][:5]) or "no drift") for e in entries],
        hovertemplate="%{x}: %{y:.4f}, %{customdata}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


def _place(entry: dict[str, Any]) -> str:
    """Name a batch on the axis; batches of different data may have equal names."""
    return escape(f"{entry['batch']} ({entry['data'][:4]})")
