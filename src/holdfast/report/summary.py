"""Short summary of a comparison for slides and messages: Markdown, and an image with the forest plot."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from holdfast.core.files import write_atomic, write_text
from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.axes import Axis
from holdfast.report.explain import explain
from holdfast.report.forest import GREY, Difference, difference_text, differences
from holdfast.report.plots import COLOURS, DARK
from holdfast.report.words import headline
from holdfast.stats.decision import decide
from holdfast.stats.formatting import format_cell, is_percent, metric_name, scaled
from holdfast.stats.gap import IN_DOMAIN, headroom_text
from holdfast.stats.labels import grouped, largest
from holdfast.stats.table import experiment, rows

MOST_ROWS = 10  # of the table and of the plot
SIZE = (1600, 900)  # pixels, the proportions of a slide
MARGIN = 70


@dataclass(frozen=True)
class Summary:
    """Sentences and differences of a comparison, the best method first."""

    title: str
    metric: str
    decision: str
    headroom: str
    averages: dict[str, str]  # label -> average score
    entries: list[Difference]

    def markdown(self) -> str:
        """Return the summary as Markdown."""
        lines = [f"# {self.title}", "", self.decision, ""]
        lines += [f"Headroom: {self.headroom}", ""] if self.headroom else []
        lines += [f"| method | average {metric_name(self.metric)} | difference, 95% interval |", "|---|---|---|"]
        shown = {entry.label: difference_text(entry, self.metric) for entry in self.entries}
        order = [label for label in self.averages if label not in shown] + list(shown)
        lines += [
            f"| {label} | {self.averages.get(label, '')} | {shown.get(label, '')} |" for label in order[:MOST_ROWS]
        ]
        left_out = len(order) - MOST_ROWS
        return "\n".join(lines + ([f"\n{left_out} more rows are in the report."] if left_out > 0 else [])) + "\n"


def summarise_records(records: Sequence[RunRecord], metric: str, title: str) -> Summary:
    """Collect the decision, the headroom and the differences of a set of records."""
    groups = grouped(largest(records))
    rivals = {k: g for k, g in groups.items() if g[0].spec.get("plan") != IN_DOMAIN} or groups
    compared = [record for group in rivals.values() for record in group]
    table = rows(compared, metric)
    averages = {row.label: format_cell(row.average, metric) for row in table if row.average is not None}
    if len({experiment(record) for record in compared}) > 1:
        text = "The records come from several data sets or plans, so no method is recommended."
        return Summary(title, metric, text, "", averages, [])
    decision = decide([r for r in records if r.spec.get("plan") != IN_DOMAIN] or compared, metric)
    text = headline(table, metric)
    if decision is not None:
        text = f"Recommended: {decision.label}. {explain(compared, metric, decision)}"
    return Summary(title, metric, text, headroom_text(records, metric), averages, differences(rivals, metric))


def write_summary(records: Sequence[RunRecord], folder: Path, *, title: str, metric: str) -> tuple[Path, Path]:
    """Write summary.md and summary.png, and return their paths."""
    summary = summarise_records(records, metric, title)
    image = draw(summary)
    text = write_text(folder / "summary.md", summary.markdown())
    return text, write_atomic(folder / "summary.png", lambda path: image.save(path, format="PNG", optimize=True))


def draw(summary: Summary) -> Image.Image:
    """Draw title, decision, headroom and the forest plot of the best methods on one slide."""
    image = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(image)
    y = _write(pen, summary.title, MARGIN, size=40, width=60)
    y = _write(pen, summary.decision, y + 16, size=25, width=118)
    if summary.headroom:
        y = _write(pen, f"Headroom: {summary.headroom}", y + 12, size=25, width=118)
    if summary.entries:
        _draw_forest(pen, summary, y + 30)
    return image


def _write(pen: ImageDraw.ImageDraw, text: str, y: int, *, size: int, width: int) -> int:
    """Write wrapped lines and return the position below them."""
    for line in textwrap.wrap(text, width):
        pen.text((MARGIN, y), line, fill=DARK, font=ImageFont.load_default(size))
        y += round(1.35 * size)
    return y


def _draw_forest(pen: ImageDraw.ImageDraw, summary: Summary, top: int) -> None:
    entries, metric = summary.entries[:MOST_ROWS], summary.metric
    ends = [scaled(v, metric) for e in entries for v in (e.mean, e.low, e.high) if v is not None]
    axis = Axis({}, [0.0, *ends], vertical=False)
    left, right, bottom = 430, SIZE[0] - MARGIN, SIZE[1] - 90
    font, step = ImageFont.load_default(22), min(52.0, (bottom - top) / len(entries))
    better = -1 if metric in LOWER_IS_BETTER else 1

    def at(value: float) -> float:
        return left + axis.at(scaled(value, metric)) * (right - left)

    bottom = round(top + step * len(entries))
    for share, label in axis.ticks():
        x = left + share * (right - left)
        pen.line((x, top, x, bottom), fill="#dddddd", width=1)
        pen.text((x, bottom + 8), label.replace("\N{MINUS SIGN}", "-"), fill=GREY, font=font, anchor="ma")
    pen.line((at(0.0), top, at(0.0), bottom), fill=GREY, width=2)
    for index, entry in enumerate(entries):
        y, x = top + (index + 0.5) * step, at(entry.mean)
        colour = GREY if not entry.clear else COLOURS[0] if better * entry.mean > 0 else COLOURS[1]
        if entry.low is not None and entry.high is not None:
            pen.line((at(entry.low), y, at(entry.high), y), fill=colour, width=4)
        corners = [(x, y - 10), (x + 10, y), (x, y + 10), (x - 10, y)]
        pen.polygon(corners, fill=colour if entry.significant else "white", outline=colour, width=3)
        pen.text((left - 24, y), textwrap.shorten(entry.label, 32, placeholder="…"), fill=DARK, font=font, anchor="rm")
    unit = "points" if is_percent(metric) else "difference"
    caption = f"{metric_name(metric)}: {unit} compared with {entries[0].rival}, 95% intervals"
    pen.text(((left + right) / 2, bottom + 42), caption, fill=GREY, font=font, anchor="ma")
