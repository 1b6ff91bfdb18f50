"""Write the generated tables of the documentation: from the records in results/, and from the catalog.

A page holds blocks `<!-- table: NAME -->` ... `<!-- end -->`, and `<!-- file: NAME -->` ... `<!-- end -->` for a long
table, which is written to a CSV file that the block links. Run `python -m studies.build` from the repository root to
recompute all of them, or `python -m studies.build --check` to list files that are out of date.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from studies import (
    audit,
    benchmarks,
    default_tables,
    field_page,
    gmap,
    gmap_fold_tables,
    gmoe,
    hma,
    index,
    label_errors,
    methods,
    mil,
    monitoring,
    pmb,
    primary_tables,
    readme,
    table_sets,
)

DOCS = Path(__file__).parents[1] / "docs"
TABLES: dict[str, Mapping[str, Callable[[], list[str]]]] = {
    "studies/index": index.TABLES,
    "studies/primary": primary_tables.TABLES,
    "studies/default": default_tables.TABLES,
    "studies/tables": table_sets.TABLES,
    "studies/field": field_page.TABLES,
    "studies/mil": mil.TABLES,
    "studies/pmb": pmb.TABLES,
    "studies/hma": hma.TABLES,
    "studies/gmap": gmap.TABLES,
    "studies/gmap-folds": gmap_fold_tables.TABLES,
    "studies/gmoe": gmoe.TABLES,
    "studies/monitoring": monitoring.TABLES | label_errors.TABLES,
    "audit": audit.TABLES,
    "benchmarks": benchmarks.TABLES,
    "scaling": benchmarks.SCALING_TABLES,
}
FILES = {DOCS / f"{page}.md": tables for page, tables in TABLES.items()} | methods.FILES | readme.FILES
BLOCK = re.compile(r"<!-- (?P<kind>table|file): (?P<name>[\w/-]+) -->\n.*?<!-- end -->", re.DOTALL)
MOST_ROWS = 10  # rows of a table on a page; longer ones are linked


def block(name: str, lines: list[str]) -> str:
    """Return the block of a table."""
    return "\n".join([f"<!-- table: {name} -->", *lines, "<!-- end -->"])


def csv_text(lines: list[str]) -> str:
    """Return a Markdown table as the text of a CSV file."""
    file = io.StringIO()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def build(path: Path, text: str) -> tuple[str, dict[Path, str]]:
    """Return a page with all blocks recomputed, and the texts of the CSV files that it links."""
    files: dict[Path, str] = {}

    def replace(match: re.Match[str]) -> str:
        name, lines = match["name"], FILES[path][match["name"]]()
        if match["kind"] == "table":
            return block(name, lines)
        file = path.parent / "csv" / f"{path.stem}-{name}.csv"
        files[file] = csv_text(lines)
        return f"<!-- file: {name} -->\n[Table of {len(lines) - 2} rows](csv/{file.name})\n<!-- end -->"

    return BLOCK.sub(replace, text), files


def blocks(text: str) -> list[str]:
    """Return the names of the blocks of a page."""
    return [match["name"] for match in BLOCK.finditer(text)]


def outdated() -> dict[Path, str]:
    """Return the present text of every page and CSV file that differs from it."""
    present: dict[Path, str] = {}
    for path in FILES:
        page, files = build(path, path.read_text(encoding="utf-8"))
        present |= {path: page, **files}
    return {
        path: text for path, text in present.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Rebuild the pages and CSV files, or report those that are out of date."""
    changed, checks = outdated(), "--check" in arguments
    for path, text in changed.items():
        if not checks:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    names = ", ".join(path.name for path in changed)
    sys.stdout.write(f"{'out of date' if checks else 'updated'}: {names or 'none'}\n")
    return int(bool(changed) and checks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
