"""Write the generated tables of the documentation: from the records in results/, and from the catalog.

A page holds blocks `<!-- table: NAME -->` ... `<!-- end -->`; run `python -m studies.build` from the repository root to
recompute every block, or `python -m studies.build --check` to list pages that are out of date.
"""

from __future__ import annotations

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
    "studies/field-trials": field_page.TRIAL_TABLES,
    "studies/mil": mil.TABLES,
    "studies/pmb": pmb.TABLES,
    "studies/hma": hma.TABLES,
    "studies/gmap": gmap.TABLES,
    "studies/gmoe": gmoe.TABLES,
    "studies/monitoring": monitoring.TABLES | label_errors.TABLES,
    "audit": audit.TABLES,
    "benchmarks": benchmarks.TABLES,
    "scaling": benchmarks.SCALING_TABLES,
}
FILES = {DOCS / f"{page}.md": tables for page, tables in TABLES.items()} | methods.FILES | readme.FILES
BLOCK = re.compile(r"<!-- table: (?P<name>[\w/-]+) -->\n.*?<!-- end -->", re.DOTALL)
LONGEST = 10  # lines of a table that is shown without a click


def block(name: str, lines: list[str]) -> str:
    """Return a table block; a long table without headings is collapsed."""
    table = "\n".join(lines)
    if len(lines) - 2 > LONGEST and "" not in lines:
        table = f"<details><summary>{len(lines) - 2} rows</summary>\n\n{table}\n\n</details>"
    return f"<!-- table: {name} -->\n{table}\n<!-- end -->"


def build(path: Path, text: str) -> str:
    """Recompute all table blocks of a page."""
    return BLOCK.sub(lambda match: block(match["name"], FILES[path][match["name"]]()), text)


def blocks(text: str) -> list[str]:
    """Return the names of the table blocks of a page."""
    return [match["name"] for match in BLOCK.finditer(text)]


def main(arguments: list[str]) -> int:
    """Rebuild the pages, or report those that are out of date."""
    stale = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        if (built := build(path, text)) != text:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(built, encoding="utf-8")
    sys.stdout.write(f"{'out of date' if '--check' in arguments else 'updated'}: {', '.join(stale) or 'none'}\n")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
