"""holdfast report and holdfast list: tables from records, and the names other commands accept."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from holdfast.cli import options
from holdfast.cli.console import print_json, say, show, show_summary


def report(
    runs: Annotated[list[Path], options.argument("Folders that `holdfast compare` wrote, or .jsonl.gz record files.")],
    metric: Annotated[str | None, options.option("Metric to show. [default: the metric of the runs]")] = None,
    out: Annotated[
        Path | None, options.option("HTML file to write. [default: report.html in the first folder]")
    ] = None,
    summary: Annotated[
        bool, options.option("Also write summary.md and summary.png, for slides, next to the report.", "--summary")
    ] = False,
    json: options.Json = False,
) -> None:
    """Rebuild the table and the HTML report from the records of one or several comparisons, without training.

    Examples:

    - `holdfast report runs/reviews`

    - `holdfast report runs/a runs/b --metric macro_f1 --out both.html`

    - `holdfast report runs/reviews --summary`
    """
    from holdfast.core.errors import BadInput, unknown
    from holdfast.record import PACKED, load
    from holdfast.report.page import write_report
    from holdfast.stats.engagement import engagement_table
    from holdfast.stats.summary import summarise
    from holdfast.stats.table import flat_table
    from holdfast.train.analyses import report_notes

    for folder in runs:
        if folder.name.endswith(PACKED) and folder.is_file():
            continue
        if not folder.is_dir():
            raise BadInput(f"no folder {folder}: name a folder that `holdfast compare` wrote")
        if (folder / "config.json").is_file() and not (folder / "records").is_dir():
            raise BadInput(
                f"{folder} is a model folder without records of a comparison: its scores are in "
                f"{folder / 'record.json'}, and `holdfast predict {folder} FILE` scores it on labelled data"
            )
    records = list({record.id: record for folder in runs for record in load(folder)}.values())
    if not records:
        raise BadInput(f"no records in {', '.join(map(str, runs))}: run `holdfast compare` first")
    metric = metric or str(records[0].spec["metric"])
    metrics = {name for record in records for scores in record.stages[-1]["test"].values() for name in scores}
    if metric not in metrics:
        raise unknown("metric", metric, metrics)
    data = ", ".join(dict.fromkeys(str(record.spec["data"]) for record in records))
    notes = report_notes(records)
    folder = runs[0] if runs[0].is_dir() else runs[0].parent
    findings = summarise(records, metric)
    page = write_report(findings, out or folder / "report.html", title=f"Holdfast: {data}", notes=notes)
    written: dict[str, str] = {}
    if summary:
        from holdfast.report.summary import write_summary

        paths = write_summary(findings, page.parent, title=f"Holdfast: {data}")
        written = dict(zip(("markdown", "image"), map(str, paths), strict=True))
    if json:
        documents = [{"id": record.id, **asdict(record)} for record in records]
        tables = {"table": flat_table(findings.every), "engagement": engagement_table(findings.every.groups)}
        files = {"report": str(page), **({"summary": written} if summary else {})}
        print_json({**tables, "records": documents, **files})
        return
    show_summary(findings)
    say(*notes)
    say(f"report: {page}", *(f"summary: {path}" for path in written.values()))


def list_section(
    what: Annotated[
        str,
        options.argument(
            "methods, encoders, necks, heads, datasets, augmentations, protocols, selections, tasks, benches, "
            "analyses, recipes."
        ),
    ],
    json: options.Json = False,
) -> None:
    """List the names other commands accept, with one line about each; recipes show their published numbers.

    Examples:

    - `holdfast list methods`

    - `holdfast list encoders --json`

    - `holdfast list recipes`
    """
    from holdfast import catalog
    from holdfast.core.errors import unknown

    if what not in catalog.SECTIONS:
        raise unknown("list", what, catalog.SECTIONS)
    entries: list[dict[str, Any]] = list(catalog.describe(what))
    known = {name: entry for name, entry in catalog.SECTIONS[what].items() if isinstance(entry, catalog.Entry)}
    if json:
        details = {name: entry.details(name) for name, entry in known.items()}
        print_json([entry | details.get(entry["name"], {}) for entry in entries])
        return
    table = Table("name", "about", box=None)
    for entry in entries:
        table.add_row(entry["name"], entry["about"])
    show(table)
    for name, entry in known.items():
        if (shown := entry.shown(name)) is not None:
            show(shown)
