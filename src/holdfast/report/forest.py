"""Forest plot: difference of every row to its baseline, with a 95% interval over pairs of seed and target."""

from collections.abc import Sequence

from holdfast.record import LOWER_IS_BETTER
from holdfast.report.axes import Axis
from holdfast.report.marks import Errors, Points, Rule
from holdfast.report.plots import COLOURS, Chart, Plot
from holdfast.report.sections import Cell
from holdfast.stats.decision import Difference
from holdfast.stats.formatting import format_difference, is_percent, scaled, shortened, spelled

LONGEST = 28  # characters of a label next to the plot, which leave room for it on a phone
GREY = "#767676"  # differences whose interval includes zero


def forest_chart(entries: Sequence[Difference], metric: str) -> Chart | None:
    """Draw one line per row, the best at the top; None without differences."""
    if not entries:
        return None
    marks = []
    for entry in entries:
        mean, colour = entry.pairs.difference, difference_colour(entry, metric)
        half = 0.0 if entry.interval is None else scaled(entry.interval[1] - mean, metric)
        marks.append(Points(
            [scaled(mean, metric)], [entry.label], f"{entry.label}: {difference_text(entry, metric)}",
            name=entry.label, owner=entry.label, colour=colour, errors=Errors([half], None, True, 5, 2), size=11,
            symbol="diamond" if entry.significant else "diamond-open",
        ))  # fmt: skip
    names = [entry.label for entry in entries]
    x = Axis(f"{'points' if is_percent(metric) else 'difference'}, compared with {_rivals(entries)}")
    ticks = [(name, shortened(name, LONGEST)) for name in names]
    y = Axis(names=names[::-1], limits=(-0.5, len(names) - 0.5), ticks=ticks)
    figure = Plot(*marks, x=x, y=y, rules=[Rule(0)])
    return figure.html("forest", height=90 + 30 * len(entries), legend=False)


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


def _rivals(entries: Sequence[Difference]) -> str:
    names = list(dict.fromkeys(entry.rival for entry in entries))
    return names[0] if len(names) == 1 else "the baseline of each row"
