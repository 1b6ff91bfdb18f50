"""holdfast bench: speed as ratios to a reference measured in the same run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from holdfast.cli import options
from holdfast.cli.console import give_json, say, show


def bench(
    name: Annotated[str, typer.Argument(help="See `holdfast list benches`.", show_default=False)],
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Measure a part against its reference; exit code 1 when a bar is missed. Each case is told as it comes.

    Examples:

    - `holdfast bench loop`

    - `holdfast bench cache --json`
    """
    from holdfast import catalog
    from holdfast.bench.harness import heard
    from holdfast.core.errors import BadInput, unknown
    from holdfast.run.settings import choose_device

    if name not in catalog.BENCHES:
        raise BadInput(f"{unknown('bench', name, catalog.BENCHES)} `holdfast list benches` shows all")
    where = choose_device(device)
    measure = catalog.lookup("benches", name).load()
    with heard.bind(lambda r: say(f"{r.case}: {r.error or f'{r.ratio:.3f}'}")):
        results = measure(where)
    if json:
        give_json({"bench": name, "device": str(where), "results": [r.json() for r in results]})
    else:
        table = Table("case", "ratio", "bar", "", box=None)
        for r in results:
            told = "ok" if r.ok else r.error or "missed"
            table.add_row(r.case, "-" if r.error else f"{r.ratio:.3f}", r.bar_text(), told)
        show(table)
    if not all(r.ok for r in results):
        raise typer.Exit(1)
