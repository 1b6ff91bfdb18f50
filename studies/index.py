"""Summary table of all five systems (docs/studies/index.md)."""

from __future__ import annotations

from studies import gmap, gmoe, hma, mil, pmb
from studies.tables import header

PUBLISHED = {  # gain of a system over its baseline on a data set, in points, as its paper reports it
    "MIL": {"Amazon reviews": "+2.0", "MNLI": "+3.4"}, "PMB": {"two genres of MultiNLI": "+1.4"},
    "HMA": {"small to large graphs": "+6.0"}, "G-MAP": {"six text data sets": "+2.6"}, "GMoE": {"PACS": "+1.9"},
}  # fmt: skip


def _cell(lines: list[str], row: str, column: str) -> str:
    """Return one cell of a Markdown table."""
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    (cells,) = (cells for cells in rows if cells[0] == row)
    return cells[heads.index(column)]


def page_of(system: str) -> str:
    """Return the file of the study of a system."""
    return f"{system.lower().replace('-', '')}.md"


def systems() -> list[str]:
    """Published gain, measured gain and gain over the null control per system, with the evidence for engagement."""
    amazon, mnli = mil.scores("amazon"), mil.scores("mnli")
    genres, sizes, texts = pmb.two_genres(), hma.size().table(), gmap.texts()
    pacs, other_text = gmoe.chosen("dinov2-shape"), _cell(gmap.gains(), "all texts", "over another text")
    collapsed = "no: the read is flat untrained and collapses to a few slots in training"
    rows = [
        ("MIL", "Amazon reviews", amazon, "MIL, chosen settings", "ERM",
         "the untrained memory", collapsed),
        ("MIL", "MNLI", mnli, "MIL, chosen settings", "ERM", "the untrained memory", collapsed),
        ("PMB", "two genres of MultiNLI", genres, pmb.GROWN, "F", "random slots",
         "not shown: random slots score the same"),
        ("HMA", "small to large graphs", sizes, "HMA", "ERM", "PARAM",
         "not shown: a noise queue scores the same"),
        ("G-MAP", "six text data sets", texts, gmap.GMAP, "DAPT", "its own copy",
         f"yes: over the memory of another text {other_text}"),
        ("GMoE", "PACS", pacs, "GMoE", "ERM", "random routing",
         "not shown: random routing scores the same"),
    ]  # fmt: skip
    lines = header("system", "data", "published gain", "measured gain", "gain over the null control", "engaged")
    for system, data, table, row, baseline, null, engaged in rows:
        gain, over_null = (_cell(table, row, f"against {base}") for base in (baseline, null))
        page = f"[{system}]({page_of(system)})"
        lines.append(f"| {page} | {data} | {PUBLISHED[system][data]} | {gain} | {over_null} | {engaged} |")
    return lines


TABLES = {"systems": systems}
