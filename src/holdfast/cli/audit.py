"""holdfast audit: check data for duplicates, leaks and shift before training."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.console import print_json, say, show


def audit(
    data: options.Data,
    task: options.Task = None,
    near: Annotated[
        float,
        typer.Option(help="Similarity above which two texts are near duplicates, 0.7 to 1; 1: exact duplicates only."),
    ] = 0.8,
    clean: Annotated[
        Path | None,
        options.option("Write a table without duplicates; .csv, .jsonl or .parquet. The original data is not changed."),
    ] = None,
    label_errors: Annotated[
        Path | None,
        options.option("Write a ranked table of likely label errors; .csv, .jsonl or .parquet.", "--label-errors"),
    ] = None,
    out: Annotated[Path, typer.Option(help="HTML report to write.")] = Path("audit.html"),
    runs: Annotated[
        Path, typer.Option(help="Folder of a comparison; if it used this data, its scores are shown as well.")
    ] = Path("runs/compare"),
    column: options.Column = None,
    settings: options.Set = None,
    skip_bad: options.SkipBad = False,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Inspect data before training: headroom, duplicates, leaks, labels, shift of inputs and columns, advice.

    Only fast linear classifiers are trained, within each domain and on all other domains. The findings come first,
    then their tables.

    Examples:

    - `holdfast audit reviews.csv`

    - `holdfast audit reviews.csv --clean clean.csv --out reviews.html`

    - `holdfast audit reviews.csv --label-errors errors.csv`

    - `holdfast audit images/ --json`

    - `holdfast audit names/ --task tag`

    - `holdfast audit prices.csv --task regress`
    """
    from holdfast.auditing.audit import audit as run
    from holdfast.report.terminal import rich_grid
    from holdfast.train.settings import parse_settings

    result = run(
        data, task=task, near=near, out=out, clean=clean, label_errors=label_errors, runs=runs,
        columns=options.pairs(column),
        data_dir=data_dir, tell=None if json else say, skip_bad=skip_bad, settings=parse_settings(settings or ()),
    )  # fmt: skip
    if json:
        print_json(result.json())
        return
    say(*result.notes)
    show(Text(result.headline))
    for sentence in result.advice:
        show(Text(f"- {sentence}"))
    show(Text(""))
    for grid in result.grids:
        show(rich_grid(grid))
        show(Text(f"{grid.about}\n"))
    if result.label_errors.skipped:
        say(result.label_errors.skipped)
    if result.errors_file is not None:
        say(f"likely label errors: {result.errors_file}")
    if result.clean is not None:
        say(f"without duplicates: {result.clean}")
    say(f"report: {result.report}")
    if result.command is not None:
        say(f"next: {result.command}")
