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
    out: Annotated[Path, typer.Option(help="HTML report to write.")] = Path("audit.html"),
    column: options.Column = None,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Inspect data before training: duplicates, leaks between splits, labels, distances between domains, advice.

    Only a fast linear classifier is trained, within each domain and on all other domains.

    Examples:

    - `holdfast audit reviews.csv`

    - `holdfast audit reviews.csv --clean clean.csv --out reviews.html`

    - `holdfast audit images/ --json`

    - `holdfast audit names/ --task tag`
    """
    from holdfast.auditing.audit import audit as run
    from holdfast.report.terminal import rich_grid

    result = run(
        data, task=task or "classify", near=near, out=out, clean=clean, columns=options.pairs(column),
        data_dir=data_dir, tell=None if json else say,
    )  # fmt: skip
    if json:
        print_json(result.json())
        return
    say(*result.notes)
    for grid in result.grids:
        show(rich_grid(grid))
        show(Text(f"{grid.about}\n"))
    show(Text(result.headline))
    for sentence in result.advice:
        show(Text(f"- {sentence}"))
    if result.clean is not None:
        say(f"without duplicates: {result.clean}")
    say(f"report: {result.report}")
