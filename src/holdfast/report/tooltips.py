"""Texts on the marks of a figure: tooltips, and text alternatives for screen readers."""

import html
import re
from collections.abc import Mapping
from typing import Any

from holdfast.report.axes import plain
from holdfast.report.grids import Trace, is_known

MOST_DESCRIBED = 40  # marks in a text alternative


def describe(document: Mapping[str, Any]) -> str:
    """Return the text alternative of a figure: its marks with their values, the first of many."""
    texts: list[str] = []
    for trace in document["data"]:
        template = trace.get("hovertemplate")
        if not template or trace["type"] == "contour":
            continue
        if trace["type"] == "heatmap":
            cells = [(i, j) for i, line in enumerate(trace["z"]) for j, v in enumerate(line) if is_known(v)]
            if trace.get("texttemplate") is None:
                texts.append(f"{len(trace['z'])} by {len(trace['z'][0])} cells")
                continue
            marks = [_mark_text(trace, at, cell_values(trace, *at)) for at in cells]
        else:
            pairs = enumerate(zip(trace.get("x", ()), trace.get("y", ()), strict=False))
            marks = [_mark_text(trace, i, {"x": a, "y": b}) for i, (a, b) in pairs if is_known(a) and is_known(b)]
            marks = marks if len(set(marks)) == len(marks) else [f"{len(marks)} points, {marks[0]}"]
        texts += marks
    more = len(texts) - MOST_DESCRIBED
    return html.unescape("; ".join(texts[:MOST_DESCRIBED]) + (f"; and {more} more" if more > 0 else ""))


def cell_values(trace: Trace, i: int, j: int) -> dict[str, Any]:
    return {"x": trace["x"][j], "y": trace["y"][i], "z": trace["z"][i][j], "text": str(trace["text"][i][j])}


def _mark_text(trace: Trace, at: Any, values: Mapping[str, Any]) -> str:
    """Return the text on one mark, from the template of its trace."""
    custom = trace.get("customdata")
    if custom is not None:
        custom = custom[at[0]][at[1]] if isinstance(at, tuple) else custom[at]
    values = {**values, "customdata": custom, "fullData.name": trace.get("name", "")}
    return fill_template(str(trace["hovertemplate"]), values)


def title(trace: Trace, at: Any, values: Mapping[str, Any]) -> str:
    """Return the tooltip of a mark, empty without a template."""
    return f"<title>{plain(_mark_text(trace, at, values))}</title>" if trace.get("hovertemplate") else ""


def fill_template(template: str, values: Mapping[str, Any]) -> str:
    """Replace `%{name}`, `%{name[0]}` and `%{name:.3~f}` by values; formats are those of d3."""

    def replace(match: re.Match[str]) -> str:
        value = values[match[1]]
        if match[2] is not None:
            value = value[int(match[2])]
        if match[3] is None or isinstance(value, str):
            return html_text(value)
        text = f"{float(value):{match[3].replace('~', '')}}"
        return text.rstrip("0").rstrip(".") if "~f" in match[3] and "." in text else text

    text = re.sub(r"<extra>.*?</extra>", "", template).replace("<br>", "\n")
    return re.sub(r"%\{([\w.]+)(?:\[(\d+)\])?(?::([^}]+))?\}", replace, text)


def html_text(value: Any) -> str:
    """Return a value as text without tags for bold and italic."""
    return re.sub(r"</?[bi]>", "", str(value))
