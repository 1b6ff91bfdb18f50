"""Summary table of all five systems (docs/studies/index.md)."""

from __future__ import annotations

from studies import gmap, gmoe, hma, mil, pmb
from studies.tables import header


def _cell(lines: list[str], row: str, column: str) -> str:
    """Return one cell of a Markdown table."""
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    (cells,) = (cells for cells in rows if cells[0] == row)
    return cells[heads.index(column)]


def systems() -> list[str]:
    """Published gain, measured gain and gain over the null control per system, with the evidence for engagement."""
    amazon, mnli = mil.scores("amazon"), mil.scores("mnli")
    genres, sizes, texts = pmb.two_genres(), hma.size().table(), gmap.texts()
    pacs, other_text = gmoe.chosen("dinov2-shape"), _cell(gmap.gains(), "all texts", "over another text")
    collapsed = "no: the read is flat untrained and collapses to a few slots in training"
    rows = [
        ("[MIL](mil.md)", "Amazon reviews", "+2.0", amazon, "MIL, chosen settings", "ERM",
         "the untrained memory", collapsed),
        ("[MIL](mil.md)", "MNLI", "+3.4", mnli, "MIL, chosen settings", "ERM", "the untrained memory", collapsed),
        ("[PMB](pmb.md)", "two genres of MultiNLI", "+1.4", genres, pmb.GROWN, "F", "random slots",
         "not shown: random slots score the same"),
        ("[HMA](hma.md)", "small to large graphs", "+6.0", sizes, "HMA", "ERM", "PARAM",
         "not shown: a noise queue scores the same"),
        ("[G-MAP](gmap.md)", "six text data sets", "+2.6", texts, gmap.GMAP, "DAPT", "its own copy",
         f"yes: over the memory of another text {other_text}"),
        ("[GMoE](gmoe.md)", "PACS", "+1.9", pacs, "GMoE", "ERM", "random routing",
         "not shown: random routing scores the same"),
    ]  # fmt: skip
    lines = header("system", "data", "published gain", "measured gain", "gain over the null control", "engaged")
    for system, data, published, table, row, baseline, null, engaged in rows:
        gain, over_null = (_cell(table, row, f"against {base}") for base in (baseline, null))
        lines.append(f"| {system} | {data} | {published} | {gain} | {over_null} | {engaged} |")
    return lines


TABLES = {"systems": systems}
