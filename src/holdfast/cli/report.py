"""holdfast report: the table and the page again, from the records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import give_json, say, show_records


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `holdfast compare` wrote.", show_default=False)],
    metric: Annotated[str | None, typer.Option(help="Another metric than the runs' own.", show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The page. [default: report.html in the first folder]", show_default=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """Build the page again from the records of one or several comparisons; nothing is trained.

    Examples:

    - `holdfast report runs/reviews`

    - `holdfast report runs/a runs/b --metric macro_f1 --out both.html`
    """
    from dataclasses import asdict

    from holdfast.catalog import ANALYSES
    from holdfast.core.errors import BadInput, unknown
    from holdfast.record import PACKED, load
    from holdfast.report.page import write_report
    from holdfast.report.sections import missing_analysis_notes
    from holdfast.report.table import flat_table

    for folder in runs:
        if folder.name.endswith(PACKED) and folder.is_file():
            continue
        if not folder.is_dir():
            raise BadInput(f"no folder {folder}: name one that `holdfast compare` wrote")
        if (folder / "config.json").is_file() and not (folder / "records").is_dir():
            raise BadInput(
                f"{folder} holds a model and not the records of a comparison: its own scores are in "
                f"{folder / 'record.json'}, `holdfast predict {folder} FILE` scores it on labelled data, and a report "
                "is of a folder that `holdfast compare` wrote"
            )
    records = list({r.id: r for folder in runs for r in load(folder)}.values())
    if not records:
        raise BadInput(f"no records in {', '.join(map(str, runs))}: run `holdfast compare` first")
    told = metric or records[0].spec["metric"]
    metrics = {m for r in records for scores in r.stages[-1]["test"].values() for m in scores}
    if told not in metrics:
        raise unknown("metric", told, metrics)
    names = ", ".join(dict.fromkeys(str(r.spec["data"]) for r in records))
    asked = {name for r in records for name in r.analysis}
    notes = missing_analysis_notes(records, {name: each.needs for name, each in ANALYSES.items() if name in asked})
    folder = runs[0] if runs[0].is_dir() else runs[0].parent
    page = write_report(records, out or folder / "report.html", title=f"Holdfast: {names}", metric=told, notes=notes)
    if json:
        full = [{"id": r.id, **asdict(r)} for r in records]
        give_json({"table": flat_table(records, told), "records": full, "report": str(page)})
        return
    show_records(records, told)
    for sentence in notes:
        say(sentence)
    say(f"report: {page}")
