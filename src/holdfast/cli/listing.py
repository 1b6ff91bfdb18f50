"""holdfast list: what there is to name in the other verbs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from holdfast.cli import options
from holdfast.cli.console import give_json, show


def listing(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, encoders, necks, heads, datasets, protocols, selections, tasks, benches, analyses, recipes.",
            show_default=False,
        ),
    ],
    json: options.Json = False,
) -> None:
    """List what can be named in the other verbs, a line about each; recipes come with their published numbers.

    Examples:

    - `holdfast list methods`

    - `holdfast list encoders --json`

    - `holdfast list recipes`
    """
    from holdfast import catalog
    from holdfast.core.errors import unknown

    if what not in catalog.SECTIONS:
        raise unknown("list", what, catalog.SECTIONS)
    found: list[dict[str, Any]] = list(catalog.describe(what))
    if what == "recipes":
        tables = [catalog.entry(what, entry["name"]).load()() for entry in found]
        found = [entry | {"claim": t.claim, "rows": t.json()} for entry, t in zip(found, tables, strict=True)]
    if json:
        give_json(found)
        return
    table = Table("name", "about", box=None)
    for entry in found:
        table.add_row(entry["name"], entry["about"])
    show(table)
    if what == "recipes":
        for entry in found:
            show(_printed(entry))


def _printed(entry: dict[str, Any]) -> Table:
    """The numbers of a recipe as they were published; of a figure, which prints none, what it shows."""
    table = Table("row", "", *entry["rows"][0]["published"], box=None, title=entry["name"], title_justify="left")
    table.caption = entry["claim"] or None
    for row in entry["rows"]:
        numbers = ["–" if value is None else f"{value:.1f}" for value in row["published"].values()]
        table.add_row(row["row"], row["label"], *numbers)
    return table
