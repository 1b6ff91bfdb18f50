"""holdfast list: what there is to name in the other verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.console import give_json, show

if TYPE_CHECKING:
    from holdfast.recipes.recipe import Recipe
    from holdfast.report.terminal import WrappedTable


def listing(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, encoders, necks, heads, datasets, augmentations, protocols, selections, tasks, benches, "
            "analyses, recipes.",
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
    tables: list[Recipe] = []
    if what == "recipes":
        from holdfast.recipes.recipe import load_recipe

        tables = [load_recipe(entry["name"]) for entry in found]
        told = [{"claim": t.claim, "notes": list(t.notes), "rows": t.json()} for t in tables]
        found = [entry | more for entry, more in zip(found, told, strict=True)]
    if json:
        give_json(found)
        return
    table = Table("name", "about", box=None)
    for entry in found:
        table.add_row(entry["name"], entry["about"])
    show(table)
    for recipe in tables:
        show(_printed(recipe))


def _printed(recipe: Recipe) -> WrappedTable:
    """The numbers as they were published; of a figure, which prints none, what it shows; then what cannot be run."""
    from holdfast.report.terminal import WrappedTable

    lines = [
        [Text(each) for each in (name, row.label, *(cell.printed() for cell in recipe.choose([name])))]
        for name, row in recipe.rows.items()
    ]
    closed = [f"{', '.join(names)} not run: {reason}" for reason, names in recipe.reasons.items()]
    told = [text for text in (recipe.claim, *recipe.notes, *closed) if text]
    names = ["row", "", *recipe.columns]
    return WrappedTable(names, lines, Text(recipe.name), "\n".join(told), title_justify="left", labels=2)
