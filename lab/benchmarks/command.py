"""holdfast bench: measure speed as a ratio to a reference in the same run."""

from typing import Annotated

import typer
from rich.table import Table

from holdfast.cli import options
from holdfast.cli.console import print_json, say, show


def bench(
    name: Annotated[str, options.argument("Benchmark; see `holdfast list benches`.")],
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Measure one benchmark; cases are printed as they finish, and the exit code is 1 if a target is missed.

    Examples:

    - `holdfast bench loop`

    - `holdfast bench cache --json`
    """
    from holdfast import catalog
    from holdfast.train.workspace import choose_device
    from lab.benchmarks.harness import hardware, on_result, on_time

    measure = catalog.lookup("benches", name).load()
    run_device = choose_device(device)
    with on_result.bind(lambda r: say(f"{r.case}: {r.error or f'{r.ratio:.3f}'}")), on_time.bind(say):
        results = measure(run_device)
    if json:
        command = f"holdfast bench {name} --json --device {run_device.type}"
        where = {"device": str(run_device), "hardware": hardware(run_device), "command": command}
        print_json({"bench": name, **where, "results": [r.json() for r in results]})
    else:
        table = Table("case", "ratio", "target", "", box=None)
        for r in results:
            status = "ok" if r.ok else r.error or "missed"
            table.add_row(r.case, "-" if r.error else f"{r.ratio:.3f}", r.bar_text(), status)
        show(table)
    if not all(r.ok for r in results):
        raise typer.Exit(1)
