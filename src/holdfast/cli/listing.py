"""holdfast list: what there is to name in the other verbs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from holdfast.cli import options
from holdfast.cli.console import give_json, show


def listing(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, encoders, datasets, protocols, selections, necks, tasks or benches.",
            show_default=False,
        ),
    ],
    json: options.Json = False,
) -> None:
    """List methods, encoders, datasets, protocols, selections, necks, tasks or benches, a line about each.

    Examples:

    - `holdfast list methods`

    - `holdfast list encoders --json`
    """
    from holdfast import catalog
    from holdfast.core.errors import unknown

    if what not in catalog.SECTIONS:
        raise unknown("list", what, catalog.SECTIONS)
    found = catalog.describe(what)
    if json:
        give_json(found)
        return
    table = Table("name", "about", box=None)
    for entry in found:
        table.add_row(entry["name"], entry["about"])
    show(table)
