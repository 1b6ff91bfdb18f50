"""holdfast label: which rows of new data to label next."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import print_json, say


def label(
    model: options.Model,
    data: options.Data,
    most: Annotated[int, typer.Option(help="Number of rows, at most.")] = 100,
    out: Annotated[Path, typer.Option(help="Table to write; .csv, .jsonl or .parquet.")] = Path("to-label.csv"),
    device: options.Device = "auto",
    column: options.Column = None,
    json: options.Json = False,
) -> None:
    """Choose the rows of new data that are most useful to label: uncertain, foreign, and different from each other.

    The table has all columns of the file, an empty label column to fill in, the predicted label, and the score. Pass it
    to `holdfast adapt` when it is filled in.

    Examples:

    - `holdfast label models/reviews new.csv --most 100 --out to-label.csv`

    - `holdfast adapt models/reviews to-label.csv --domain hats`
    """
    from holdfast.auditing.to_label import rows_to_label

    result = rows_to_label(model, data, out, most=most, columns=options.pairs(column), device=device)
    if json:
        print_json({
            "out": str(result.path), "rows": result.rows, "examples": result.examples, "column": result.column,
            "notes": list(result.notes),
        })  # fmt: skip
        return
    say(*result.notes)
    say(f"{len(result.rows)} of {result.examples} rows to label, the most useful first: {result.path}")
    say(f"next: fill in the column '{result.column}', then holdfast adapt {model} {result.path} --domain NAME")
