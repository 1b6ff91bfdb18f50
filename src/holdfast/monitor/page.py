"""Tables and figures of `holdfast watch` for the terminal and the HTML report."""

from collections.abc import Sequence
from typing import Any

from holdfast.monitor.check import FOREIGN, BatchCheck
from holdfast.report.axes import Axis
from holdfast.report.marks import Errors, Mark, Points, Stroke
from holdfast.report.plots import COLOURS, Plot
from holdfast.report.sections import EMPTY, Cell, number_cell, word_cell
from holdfast.report.terminal import Grid

MAX_FINDINGS = 20


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
    return [
        number_cell(check.rows),
        word_cell(drift),
        number_cell(min((finding.corrected for finding in check.findings), default=None), ".2g"),
        number_cell(check.foreign, ".1%"),
        EMPTY if own is None else (own.text, own.estimate),
        number_cell(None if own is None else own.unseen, ".2f"),
        EMPTY if check.true is None else (f"{check.true:.3f} (n={check.labelled})", check.true),
    ]


def finding_grid(check: BatchCheck) -> Grid:
    """Tests of one batch, the most significant first."""
    ordered = sorted(check.findings, key=lambda finding: (finding.corrected, finding.p))[:MAX_FINDINGS]
    lines = []
    for finding in ordered:
        cells = [number_cell(value, ".4g") for value in (finding.statistic, finding.value, finding.expected)]
        cells += [number_cell(finding.corrected, ".2g"), word_cell("yes" if finding.drifted else "")]
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
        (str(example.get("id", example.get("row"))), [word_cell(str(example[key])) for key in keys])
        for example in check.examples
    ]
    about = "Examples that are common in the batch and rare among the held-out examples of the model."
    return Grid(f"Most drifted examples of {check.name}", about, ("id", *keys), lines, words=True)


def timeline(history: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Draw accuracy and drift over the batches of the history; one pair (title, figure) per figure."""
    domains = list(dict.fromkeys(entry["domain"] for entry in history))
    estimated, drift = list[Mark](), list[Mark]()
    for index, domain in enumerate(domains):
        own = [entry for entry in history if entry["domain"] == domain]
        colour, name = COLOURS[index % len(COLOURS)], domain or "all"
        estimated += _accuracies([entry for entry in own if entry["accuracy"] is not None], name, colour)
        if tested := [entry for entry in own if entry["discrepancy"] is not None]:
            drift.append(_discrepancies(tested, name, colour))
    figures = []
    if estimated:
        figure = Plot(*estimated, x=Axis(names=()), y=Axis("accuracy"))
        figures.append(("Accuracy over time", figure.html("watch-accuracy", height=360)))
    if drift:
        figure = Plot(*drift, x=Axis(names=()), y=Axis("squared discrepancy of features"))
        figures.append(("Drift over time", figure.html("watch-drift", height=320)))
    return figures


def _accuracies(entries: Sequence[dict[str, Any]], name: str, colour: str) -> list[Mark]:
    """Return estimates with their intervals as a line, and the true accuracies."""
    own = [entry["accuracy"] for entry in entries]
    above, below = (
        [0.0 if a[end] is None else abs(a[end] - a["estimate"]) for a in own] for end in ("high", "low")
    )  # fmt: skip
    estimated = [(_place(entry), entry["accuracy"]["estimate"]) for entry in entries]
    true = [(_place(entry), entry["true"]) for entry in entries if entry["true"] is not None]
    marks = list[Mark]()
    if estimated:
        errors, line = Errors(above, below), Stroke(colour)
        marks.append(_series(estimated, f"{name}, estimated", colour, errors=errors, line=line))
    if true:
        marks.append(_series(true, f"{name}, true", colour, symbol="x", size=10))
    return marks


def _series(points: Sequence[tuple[str, float]], name: str, colour: str, **options: Any) -> Points:
    places, values = zip(*points, strict=True)
    tips = [f"{place}: {value:.3f}" for place, value in points]
    return Points(places, values, tips, name=name, colour=colour, **options)


def _discrepancies(entries: Sequence[dict[str, Any]], name: str, colour: str) -> Mark:
    places, values = list(map(_place, entries)), [entry["discrepancy"] for entry in entries]
    states = [", ".join(entry["drifted"][:5]) or "no drift" for entry in entries]
    tips = [f"{place}: {value:.4f}, {state}" for place, value, state in zip(places, values, states, strict=True)]
    sizes = [11 if entry["drifted"] else 6 for entry in entries]
    return Points(places, values, tips, name=name, colour=colour, size=sizes, line=Stroke(colour))


def _place(entry: dict[str, Any]) -> str:
    """Name a batch on the axis; batches of different data may have equal names."""
    return f"{entry['batch']} ({entry['data'][:4]})"
