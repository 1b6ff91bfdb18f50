"""Forest plot: difference of every row to its baseline, with a 95% interval over pairs of seed and target."""

from collections.abc import Sequence

import plotly.graph_objects as go
from markupsafe import Markup

from holdfast.record import LOWER_IS_BETTER
from holdfast.report.plots import COLOURS, DOTTED, escape, to_html
from holdfast.report.sections import Cell
from holdfast.stats.decision import Difference
from holdfast.stats.formatting import format_difference, is_percent, scaled, spelled

LONGEST = 28  # characters of a label next to the plot
GREY = "#767676"  # differences whose interval includes zero


def forest_chart(entries: Sequence[Difference], metric: str) -> Markup | None:
    """Draw one line per row, the best at the top; None without differences."""
    if not entries:
        return None
    figure = go.Figure()
    figure.add_vline(x=0, line=DOTTED)
    for entry in entries:
        mean = entry.pairs.difference
        colour = difference_colour(entry, metric)
        half = 0.0 if entry.interval is None else scaled(entry.interval[1] - mean, metric)
        figure.add_scatter(
            name=escape(entry.label), meta=entry.label, x=[scaled(mean, metric)], y=[escape(entry.label)],
            mode="markers",
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
            (entry.rival, None), (format_difference(entry.pairs.difference, metric), entry.pairs.difference),
            (interval_text(entry, metric), None), (str(entry.pairs.n), entry.pairs.n), (state, None),
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
    return format_difference(entry.pairs.difference, metric) + (f" ({interval})" if interval else "")


def interval_text(entry: Difference, metric: str) -> str:
    """Format an interval; empty for a single pair."""
    return " to ".join(format_difference(end, metric) for end in entry.interval or ())


def difference_colour(entry: Difference, metric: str) -> str:
    """Return the colour of a difference: grey if its interval includes zero, else by its direction."""
    better = -1 if metric in LOWER_IS_BETTER else 1
    return GREY if not entry.clear else COLOURS[0] if better * entry.pairs.difference > 0 else COLOURS[1]


def _shortened(label: str) -> str:
    """Return a label that leaves room for the plot on a phone."""
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


def _rivals(entries: Sequence[Difference]) -> str:
    names = list(dict.fromkeys(entry.rival for entry in entries))
    return names[0] if len(names) == 1 else "the baseline of each row"
