"""holdfast audit: is there a shift, are there copies, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.console import give_json, say, show


def audit(
    data: options.Data,
    task: options.Task = None,
    near: Annotated[
        float, typer.Option(help="The likeness from which two texts are nearly equal, 0.7 to 1; 1: only equal inputs.")
    ] = 0.8,
    clean: Annotated[
        Path | None,
        typer.Option(
            help="A table to write without copies; .csv, .jsonl or .parquet by its ending. The data stays as it is.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("audit.html"),
    column: options.Column = None,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Look at data before training on it: copies, leaks between splits, labels, how far domains lie apart, advice.

    Nothing is trained but a quick linear classifier, inside each domain and on all others.

    Examples:

    - `holdfast audit reviews.csv`

    - `holdfast audit reviews.csv --clean clean.csv --out reviews.html`

    - `holdfast audit pictures/ --json`

    - `holdfast audit names/ --task tag`
    """
    from holdfast.audit.audit import audit as run
    from holdfast.report.terminal import rich_grid

    done = run(
        data,
        task=task or "classify",
        near=near,
        out=out,
        clean=clean,
        columns=options.pairs(column),
        data_dir=data_dir,
        tell=None if json else say,
    )
    if json:
        give_json(done.json())
        return
    for note in done.notes:
        say(note)
    for grid in done.grids:
        show(rich_grid(grid))
        show(Text(f"{grid.about}\n"))
    show(Text(done.headline))
    for sentence in done.advice:
        show(Text(f"- {sentence}"))
    if done.clean is not None:
        say(f"without copies: {done.clean}")
    say(f"report: {done.report}")
