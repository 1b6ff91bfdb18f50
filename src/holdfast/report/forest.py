"""Forest plot: difference of every row to its baseline, with a 95% interval over pairs of seed and target."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from markupsafe import Markup
from scipy.special import stdtrit

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.plots import COLOURS, DOTTED, escape, to_html
from holdfast.report.sections import Cell
from holdfast.stats.decision import against_baseline, is_significant, paired, rivals
from holdfast.stats.engagement import is_idle
from holdfast.stats.formatting import format_difference, is_percent, scaled, spelled

LEVEL = 0.95
LONGEST = 28  # characters of a label next to the plot
GREY = "#767676"  # differences whose interval includes zero


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference of one row to its baseline."""

    label: str
    rival: str
    mean: float
    low: float | None  # None for a single pair
    high: float | None
    pairs: int
    significant: bool  # after Holm's correction; False without a test
    idle: bool

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def differences(groups: Mapping[str, Sequence[RunRecord]], metric: str) -> list[Difference]:
    """Return the difference of every row to its baseline, the best first."""
    by_label = {label: list(group) for label, group in groups.items()}
    tests = {test.label: test for test in against_baseline([r for g in by_label.values() for r in g], metric)}
    entries = []
    for label, rival, _ in rivals(by_label):
        pairs = paired(by_label[label], by_label[rival], metric)
        if pairs is None or not math.isfinite(pairs.difference):
            continue
        half = None
        if pairs.stderr is not None:
            half = float(stdtrit(pairs.n - 1, (1 + LEVEL) / 2)) * pairs.stderr
        low, high = (None, None) if half is None else (pairs.difference - half, pairs.difference + half)
        significant = label in tests and is_significant(tests[label])
        entries.append(
            Difference(label, rival, pairs.difference, low, high, pairs.n, significant, is_idle(by_label[label]))
        )
    return sorted(entries, key=lambda entry: entry.mean, reverse=metric not in LOWER_IS_BETTER)


def forest_chart(entries: Sequence[Difference], metric: str) -> Markup | None:
    """Draw one line per row, the best at the top; None without differences."""
    if not entries:
        return None
    figure = go.Figure()
    figure.add_vline(x=0, line=DOTTED)
    better = -1 if metric in LOWER_IS_BETTER else 1
    for entry in entries:
        mean = scaled(entry.mean, metric)
        colour = GREY if not entry.clear else COLOURS[0] if better * mean > 0 else COLOURS[1]
        half = 0.0 if entry.high is None else scaled(entry.high - entry.mean, metric)
        figure.add_scatter(
            name=escape(entry.label), meta=entry.label, x=[mean], y=[escape(entry.label)], mode="markers",
            marker={"size": 11, "color": colour, "symbol": "diamond" if entry.significant else "diamond-open"},
            error_x={"type": "data", "array": [half], "thickness": 2, "width": 5, "color": colour},
            customdata=[difference_text(entry, metric)], hovertemplate="%{y}: %{customdata}<extra></extra>",
        )  # fmt: skip
    names = [escape(entry.label) for entry in entries]
    unit = "points" if is_percent(metric) else "difference"
    title = {"text": f"{unit}, compared with {_rivals(entries)}", "font": {"size": 12}}
    figure.update_xaxes(title=title, tickfont={"size": 11})
    shown = [escape(_shortened(entry.label)) for entry in entries]
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], tickfont={"size": 12})
    figure.update_yaxes(range=[-0.5, len(names) - 0.5], tickmode="array", tickvals=names, ticktext=shown)
    return to_html(figure, "forest", height=90 + 30 * len(entries), legend=False)


def forest_lines(entries: Sequence[Difference], metric: str) -> list[tuple[str, list[Cell]]]:
    """Return the numbers of the plot as lines of a table: baseline, difference, interval, pairs, significant."""
    lines: list[tuple[str, list[Cell]]] = []
    for entry in entries:
        state = "not engaged" if entry.idle else "yes" if entry.significant else "no"
        cells: list[Cell] = [
            (entry.rival, None), (format_difference(entry.mean, metric), entry.mean),
            (interval_text(entry, metric), None), (str(entry.pairs), entry.pairs), (state, None),
        ]  # fmt: skip
        lines.append((entry.label, cells))
    return lines


def forest_summary(entries: Sequence[Difference], metric: str) -> str:
    """Return the text alternative of the plot."""
    texts = [f"{entry.label} {difference_text(entry, metric)}" for entry in entries]
    return f"Differences of {spelled(metric)} to {_rivals(entries)} with 95% intervals: {'; '.join(texts)}"


def difference_text(entry: Difference, metric: str) -> str:
    """Format a difference and its interval: `+1.2 (0.3 to 2.1)`."""
    interval = interval_text(entry, metric)
    return format_difference(entry.mean, metric) + (f" ({interval})" if interval else "")


def interval_text(entry: Difference, metric: str) -> str:
    """Format an interval; empty for a single pair."""
    if entry.low is None or entry.high is None:
        return ""
    return f"{format_difference(entry.low, metric)} to {format_difference(entry.high, metric)}"


def _shortened(label: str) -> str:
    """Return a label that leaves room for the plot on a phone."""
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


def _rivals(entries: Sequence[Difference]) -> str:
    names = list(dict.fromkeys(entry.rival for entry in entries))
    return names[0] if len(names) == 1 else "the baseline of each row"
