"""holdfast reproduce: run a published table and print each number next to the measured one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.console import print_json, progress, say, show
from holdfast.core.forking import start_early

if TYPE_CHECKING:
    from holdfast.report.terminal import WrappedTable
    from lab.recipes.recipe import Recipe
    from lab.recipes.reproduce import Reproduction

DEMOS = "demo/"
DEFAULT_SEEDS = "5"
MODEL = ("encoder", "tune", "steps", "batch", "lr")
Table = Annotated[str, options.argument("Table or figure; see `holdfast list recipes`.")]
Rows = Annotated[str, options.option("Comma separated rows of the table. [default: all]")]
Columns = Annotated[str, options.option("Comma separated columns of the table. [default: all]")]
Encoder = Annotated[str | None, options.option("Replaces the published encoder; see `holdfast list encoders`.")]
Tune = Annotated[str | None, options.option("Replaces the published tuning: full, frozen, last:N.")]
Steps = Annotated[int | None, typer.Option(help="Replaces the published number of epochs; warm-up scales with it.")]
Batch = Annotated[int | None, typer.Option(help="Examples per domain, replaces the published batch size.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Replaces the published learning rate.")]


@options.takes(
    "recipe", "rows", "columns", "seeds", *MODEL, "out", "device", "examples", "set_", "analyse", "no_cache",
    "data_dir", *options.ENGINE, "json",
    seeds=DEFAULT_SEEDS, out=Path("runs/reproduce"),
)  # fmt: skip
def reproduce(
    recipe: Table,
    run: options.Options,
    rows: Rows = "",
    columns: Columns = "",
    encoder: Encoder = None,
    tune: Tune = None,
    steps: Steps = None,
    batch: Batch = None,
    lr: Rate = None,
) -> None:
    """Run a published table with its published settings and print each number next to the measured one.

    Data sets are read from files in --data-dir; if one is missing, the error names the file, its columns and where the
    data set is published. Options override the published settings, so a smaller encoder, fewer steps or a few rows give
    a first impression. A setting of a method, neck or plan, such as `neck.slots`, applies to the rows that have it.

    Examples:

    - `holdfast list recipes`

    - `holdfast reproduce demo/gmoe` (a small experiment with its null control, in three minutes without data)

    - `holdfast reproduce mil/table1 --data-dir data`

    - `holdfast reproduce mil/table1 --data-dir data --rows baseline,memory,mil --columns books,average`

    - `holdfast reproduce mil/table2 --data-dir data --encoder minilm --steps 300 --lr 5e-5 --seeds 3`

    - `holdfast reproduce mil/figure5 --data-dir data --columns amazon --set method.memory_lr=0.01`

    - `holdfast reproduce hma/table4 --data-dir data --rows hma --columns imdb-multi --analyse slot-map,slot-attention`

    - `holdfast reproduce mil/table1 --data-dir data --jobs 4`

    Run the same command again to continue; finished runs are not repeated.
    """
    if recipe.startswith(DEMOS):
        _demonstrate(recipe, run)
        return
    start_early(run.jobs)  # before torch is imported
    from holdfast.report.words import inactive_notes
    from holdfast.stats.engagement import engagements
    from holdfast.stats.labels import grouped
    from lab.recipes.reproduce import reproduce as measure

    with progress(run.json) as listener:
        result = measure(
            recipe, rows=options.words(rows), columns=options.words(columns), seeds=options.seed_numbers(run.seeds),
            encoder=encoder, tune=tune, steps=steps, batch=batch, lr=lr, cache=not run.no_cache, settings=run.settings,
            analyse=options.words(run.analyse), watch=listener, **run.some("out", "device", "examples", "data_dir"),
            engine=options.make_engine(**run.some(*options.ENGINE)),
        )  # fmt: skip
    if run.json:
        print_json(options.comparison_json(result))
        return
    for note in result.notes:
        if "published / measured:" not in note:  # the table shows it
            say(note)
    show(_table(result))
    say(*inactive_notes(engagements(grouped(result.records))))
    say(f"report: {result.report}")


def _demonstrate(name: str, run: options.Options) -> None:
    """Run a demonstration with 10 seeds, or those that the user chose, and print its rows and its effect."""
    from holdfast import catalog
    from holdfast.train.resolve import seed_list
    from lab.demos.demo import SEEDS, rows_table
    from lab.demos.demo import run as measure

    demo = catalog.lookup("recipes", name).load()
    seeds = seed_list(SEEDS if run.seeds == DEFAULT_SEEDS else options.seed_numbers(run.seeds))

    def show_score(row: str, seed: int, score: float) -> None:
        if not run.json:
            say(f"{row}, seed {seed}: {score:.3f}")

    result = measure(demo, seeds, show_score)
    if run.json:
        print_json(result.json())
        return
    show(rows_table(demo, result.scores))
    say(result.sentence())


def _table(result: Reproduction) -> WrappedTable:
    """Return rows and columns as published, with two numbers per cell."""
    from holdfast.report.terminal import WrappedTable
    from holdfast.stats.formatting import metric_name

    lines: dict[str, dict[str, str]] = {}
    for measured in result.cells:
        lines.setdefault(measured.cell.row.label, {})[measured.cell.column.label] = measured.text()
    counts = sorted({len(measured.values) for measured in result.cells if measured.values})
    seeds = " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:]))) or "none"
    scores = metric_name(str(result.recipe.settings["metric"]))
    note = f"published / measured here; scores are {scores}; seeds: {seeds}; ± is the standard error"
    columns = dict.fromkeys(measured.cell.column.label for measured in result.cells)
    shown = [[Text(label), *(Text(text) for text in line.values())] for label, line in lines.items()]
    return WrappedTable(["row", *columns], shown, title=Text(result.recipe.name), caption=note)


def published_table(recipe: Recipe) -> WrappedTable:
    """Return the published numbers of a recipe, its claim, and the rows that cannot be run."""
    from holdfast.report.terminal import WrappedTable

    lines = [
        [Text(cell) for cell in (name, row.label, *(cell.printed() for cell in recipe.choose([name])))]
        for name, row in recipe.rows.items()
    ]
    closed = [f"{', '.join(names)} not run: {reason}" for reason, names in recipe.reasons.items()]
    notes = [text for text in (recipe.claim, *recipe.notes, *closed) if text]
    heads = ["row", "", *recipe.columns]
    return WrappedTable(heads, lines, Text(recipe.name), "\n".join(notes), title_justify="left", labels=2)
