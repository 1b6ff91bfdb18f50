"""holdfast audit, watch and label: check data before training and new data of a model, and choose rows to label."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.console import print_json, say, show


def watch(
    model: options.Model,
    data: Annotated[
        str,
        options.argument(
            "New examples in any format that `holdfast predict` reads, with or without labels; a folder of tables, one "
            "per batch; or the folder of `holdfast serve --log`."
        ),
    ],
    by: Annotated[str | None, options.option("Column whose values are the batches, such as a week.")] = None,
    rows: Annotated[
        int | None, options.option("Rows per batch, in the order of the time column or of the file. [default: all]")
    ] = None,
    labels: Annotated[
        Path | None, options.option("Table with the columns id and label, for labels that arrived later.")
    ] = None,
    reference: Annotated[
        str | None,
        options.option("Examples of the training domains to compare with. [default: stored in the model folder]"),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        options.option("Exit with code 1 on drift, or accuracy<NUMBER such as accuracy<0.8. Repeatable.", "--fail-on"),
    ] = None,
    level: Annotated[float, typer.Option(help="Probability of a false alarm per batch.")] = 0.01,
    out: Annotated[Path, typer.Option(help="HTML report to write.")] = Path("watch.html"),
    state: Annotated[
        Path | None, options.option("Folder of the history watch.jsonl. [default: the model folder]")
    ] = None,
    no_state: Annotated[bool, typer.Option("--no-state", help="Do not add the results to the history.")] = False,
    show_inputs: Annotated[
        bool, typer.Option("--show-inputs", help="Show the texts of drifted examples in the report.")
    ] = False,
    device: options.Device = "auto",
    column: options.Column = None,
    skip_bad: options.SkipBad = False,
    json: options.Json = False,
) -> None:
    """Watch a deployed model: test new batches for drift and estimate the accuracy without labels.

    Per batch and domain: a two-sample test of the features, the mix of predictions and the estimated class mix, the
    share of foreign rows, columns, missing values, new categories and words, the length of inputs, and the estimated
    accuracy with an interval that was measured on left-out domains. The history stores results, never examples.

    Examples:

    - `holdfast watch models/reviews new.csv`

    - `holdfast watch models/reviews new.csv --by week --fail-on drift --fail-on "accuracy<0.8"`

    - `holdfast watch models/reviews batches/ --labels labels.csv --state monitoring --json`

    Exit code 1 means that a condition of --fail-on holds.
    """
    from holdfast.monitor.watch import headline
    from holdfast.monitor.watch import watch as run
    from holdfast.report.terminal import rich_grid

    result = run(
        model, data, by=by, rows=rows, labels=labels, reference=reference, fail_on=fail_on or (), level=level, out=out,
        state=state, keep=not no_state, show_inputs=show_inputs, columns=options.pairs(column), skip_bad=skip_bad,
        device=device,
    )  # fmt: skip
    if json:
        print_json(result.json())
    else:
        say(*result.notes)
        show(Text(headline(result.checks)))
        for sentence in result.alerts:
            show(Text(f"- {sentence}"))
        for grid in result.grids:
            show(rich_grid(grid))
            show(Text(f"{grid.about}\n"))
        say(f"report: {result.report}")
    if result.failed:
        raise typer.Exit(1)


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
            "out": result.path, "rows": result.rows, "examples": result.examples, "column": result.column,
            "notes": result.notes,
        })  # fmt: skip
        return
    say(*result.notes)
    say(f"{len(result.rows)} of {result.examples} rows to label, the most useful first: {result.path}")
    say(f"next: fill in the column '{result.column}', then holdfast adapt {model} {result.path} --domain NAME")


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
