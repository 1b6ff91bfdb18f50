"""Short summary of a comparison for slides and messages: Markdown, and an image with the forest plot."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from holdfast.core.files import write_atomic, write_text
from holdfast.report.charts import GREY, difference_colour, difference_text
from holdfast.report.explain import explain, recommendation
from holdfast.report.plots import DARK
from holdfast.report.words import headroom_text
from holdfast.stats.decision import Difference
from holdfast.stats.formatting import format_cell, is_percent, metric_name
from holdfast.stats.gap import gaps, headroom
from holdfast.stats.summary import Summary

MOST_ROWS = 10  # of the table and of the plot
SIZE = (1600, 900)  # pixels, the proportions of a slide
MARGIN = 70


def write_summary(summary: Summary, folder: Path, *, title: str) -> tuple[Path, Path]:
    """Write summary.md and summary.png, and return their paths."""
    image = draw(summary, title)
    text = write_text(folder / "summary.md", markdown(summary, title))
    return text, write_atomic(folder / "summary.png", lambda path: image.save(path, format="PNG", optimize=True))


def markdown(summary: Summary, title: str) -> str:
    """Return title, choice, headroom and the table of averages and differences as Markdown."""
    metric = summary.metric
    averages = {r.label: format_cell(r.average, metric) for r in summary.competing.rows if r.average is not None}
    choice, headroom = _sentences(summary)
    lines = [f"# {title}", "", choice, "", *([headroom, ""] if headroom else [])]
    lines += [f"| method | average {metric_name(metric)} | difference, 95% interval |", "|---|---|---|"]
    shown = {entry.label: difference_text(entry, metric) for entry in summary.differences}
    order = [label for label in averages if label not in shown] + list(shown)
    lines += [f"| {label} | {averages.get(label, '')} | {shown.get(label, '')} |" for label in order[:MOST_ROWS]]
    left_out = len(order) - MOST_ROWS
    return "\n".join(lines + ([f"\n{left_out} more rows are in the report."] if left_out > 0 else [])) + "\n"


def _sentences(summary: Summary) -> tuple[str, str]:
    """Return the choice, or the best method without one, and the headroom over all numbers of rows."""
    if summary.mixed:
        return recommendation(summary), ""
    groups, metric = summary.every.groups, summary.metric
    room = summary.headroom
    if summary.every is not summary.shown:
        room = headroom(groups, metric, gaps(groups, metric))
    text = f"Headroom: {headroom_text(room, metric)}" if room else ""
    if summary.decision is None:
        return recommendation(summary), text
    return f"Recommended: {summary.decision.label}. {explain(summary)}", text


def draw(summary: Summary, title: str) -> Image.Image:
    """Draw title, choice, headroom and the forest plot of the best methods on one slide."""
    image = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(image)
    choice, headroom = _sentences(summary)
    y = _write(pen, title, MARGIN, size=40, width=60)
    y = _write(pen, choice, y + 16, size=25, width=118)
    if headroom:
        y = _write(pen, headroom, y + 12, size=25, width=118)
    if summary.differences:
        _draw_forest(pen, summary.differences[:MOST_ROWS], summary.metric, y + 30)
    return image


def _write(pen: ImageDraw.ImageDraw, text: str, y: int, *, size: int, width: int) -> int:
    """Write wrapped lines and return the position below them."""
    for line in textwrap.wrap(text, width):
        pen.text((MARGIN, y), line, fill=DARK, font=ImageFont.load_default(size))
        y += round(1.35 * size)
    return y


def _draw_forest(pen: ImageDraw.ImageDraw, entries: Sequence[Difference], metric: str, top: int) -> None:
    """Draw label, interval and numbers per row, and a line at zero."""
    ends = [0.0, *(v for e in entries for v in (e.pairs.difference, *(e.interval or ())))]
    left, right, font = 430, SIZE[0] - 430, ImageFont.load_default(22)
    low, span, step = min(ends), max(ends) - min(ends), min(52.0, (SIZE[1] - 90 - top) / len(entries))

    def at(value: float) -> float:
        return left + (value - low) / (span or 1.0) * (right - left)

    bottom = round(top + step * len(entries))
    pen.line((at(0.0), top, at(0.0), bottom), fill=GREY, width=2)
    for index, entry in enumerate(entries):
        y, x, colour = top + (index + 0.5) * step, at(entry.pairs.difference), difference_colour(entry, metric)
        if entry.interval is not None:
            pen.line((at(entry.interval[0]), y, at(entry.interval[1]), y), fill=colour, width=4)
        corners = [(x, y - 10), (x + 10, y), (x, y + 10), (x - 10, y)]
        pen.polygon(corners, fill=colour if entry.significant else "white", outline=colour, width=3)
        pen.text((left - 24, y), textwrap.shorten(entry.label, 32, placeholder="…"), fill=DARK, font=font, anchor="rm")
        pen.text((right + 24, y), difference_text(entry, metric), fill=DARK, font=font, anchor="lm")
    unit = "points" if is_percent(metric) else "difference"
    caption = f"{metric_name(metric)}: {unit} compared with {entries[0].rival}, 95% intervals"
    pen.text(((left + right) / 2, bottom + 24), caption, fill=GREY, font=font, anchor="ma")
