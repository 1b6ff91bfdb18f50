"""holdfast reproduce: a published table, row by row, beside what is measured here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli import options as engines
from holdfast.cli.console import give_json, say, show, watching

if TYPE_CHECKING:
    from holdfast.recipes.reproduce import Reproduction
    from holdfast.report.terminal import WrappedTable

Recipe = Annotated[str, typer.Argument(help="See `holdfast list recipes`.", show_default=False)]
Rows = Annotated[str, typer.Option(help="Comma separated rows of the table. [default: all]", show_default=False)]
Columns = Annotated[str, typer.Option(help="Comma separated columns of the table. [default: all]", show_default=False)]
Encoder = Annotated[
    str | None,
    typer.Option(help="In place of the published encoder; see `holdfast list encoders`.", show_default=False),
]
Tune = Annotated[
    str | None, typer.Option(help="In place of the published tuning: full, frozen, last:N.", show_default=False)
]
Steps = Annotated[int | None, typer.Option(help="In place of the published number of epochs; warm-up scales with it.")]
Batch = Annotated[int | None, typer.Option(help="Examples of each domain, in place of the published batch.")]
Rate = Annotated[float | None, typer.Option("--lr", help="In place of the published learning rate.")]


def reproduce(
    recipe: Recipe,
    rows: Rows = "",
    columns: Columns = "",
    seeds: options.Seeds = "5",
    encoder: Encoder = None,
    tune: Tune = None,
    steps: Steps = None,
    batch: Batch = None,
    lr: Rate = None,
    out: options.Out = Path("runs/reproduce"),
    device: options.Device = "auto",
    examples: options.Examples = None,
    set_: options.Set = None,
    analyse: options.Analyse = "",
    no_cache: options.NoCache = False,
    data_dir: options.DataDir = None,
    engine: engines.Engine = "local",
    jobs: engines.Jobs = None,
    address: engines.Address = None,
    cpus: engines.Cpus = None,
    gpus: engines.Gpus = None,
    json: options.Json = False,
) -> None:
    """Run a published table with its published settings, and show each number beside the one measured here.

    The data sets are read from tables that you put into one folder; where one is missing, a sentence says which file
    with which columns, and where the set is published. What you say here goes over what was published, so a smaller
    encoder, fewer steps or some rows give a first look. A setting of a method, a neck or a plan, such as
    `neck.slots`, goes to the rows that have it.

    Examples:

    - `holdfast list recipes`

    - `holdfast reproduce mil/table1 --data-dir data`

    - `holdfast reproduce mil/table1 --data-dir data --rows baseline,memory,mil --columns books,average`

    - `holdfast reproduce mil/table2 --data-dir data --encoder minilm --steps 300 --lr 5e-5 --seeds 3`

    - `holdfast reproduce mil/figure5 --data-dir data --columns amazon --set method.memory_lr=0.01`

    - `holdfast reproduce hma/table4 --data-dir data --rows hma --columns imdb-multi --analyse slot-map,slot-attention`

    - `holdfast reproduce mil/table1 --data-dir data --jobs 4`

    Run the same command again and it goes on where it was; finished runs are not run twice.
    """
    from holdfast.recipes.reproduce import reproduce as run
    from holdfast.run.settings import parse

    where = engines.chosen(engine, jobs, address, cpus, gpus)
    with watching(json) as watch:
        done = run(
            recipe,
            rows=options.words(rows),
            columns=options.words(columns),
            seeds=options.seed_numbers(seeds),
            out=out,
            encoder=encoder,
            tune=tune,
            steps=steps,
            batch=batch,
            lr=lr,
            device=device,
            cache=not no_cache,
            examples=examples,
            data_dir=data_dir,
            settings=parse(set_ or []),
            analyse=options.words(analyse),
            watch=watch,
            engine=where,
        )
    if json:
        give_json(options.comparison_json(done))
        return
    for text in done.notes:
        if "published / measured:" not in text:  # the table says it
            say(text)
    show(_table(done))
    say(f"report: {done.report}")


def _table(done: Reproduction) -> WrappedTable:
    """Rows and columns as published, two numbers in each cell."""
    from holdfast.report.terminal import WrappedTable
    from holdfast.report.words import metric_name

    lines: dict[str, dict[str, str]] = {}
    for one in done.cells:
        lines.setdefault(one.cell.row.label, {})[one.cell.column.label] = one.text()
    counts = sorted({len(one.values) for one in done.cells if one.values})
    seeds = " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:]))) or "none"
    scores = metric_name(str(done.recipe.settings["metric"]))
    note = f"published / measured here; scores are {scores}; seeds: {seeds}; ± is the standard error"
    columns = dict.fromkeys(one.cell.column.label for one in done.cells)
    shown = [[Text(label), *(Text(text) for text in line.values())] for label, line in lines.items()]
    return WrappedTable(["row", *columns], shown, title=Text(done.recipe.name), caption=note)
