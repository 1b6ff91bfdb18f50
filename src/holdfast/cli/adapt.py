"""holdfast adapt and holdfast rollback: learn one more domain, and return to an earlier version."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.console import print_json, progress, say, show, started

REFUSED = 3  # exit code if the model would forget too much


@options.takes(
    "model", "data", "domain", "earlier", "unlabelled", "method", "max_forgetting", "force", "metric", "steps",
    "batch", "lr", "seed", "device", "column", "skip_bad", "set_", "budget", "json",
)  # fmt: skip
def adapt(
    model: options.Model,
    run: options.Options,
    data: Annotated[
        str | None, typer.Argument(metavar="[DATA]", help="Labelled examples of the new domain.", show_default=False)
    ] = None,
    domain: Annotated[
        str | None,
        options.option(
            "The new domain: which domain of the file to use, or its name if the file has no domain column."
        ),
    ] = None,
    earlier: Annotated[
        list[str] | None,
        options.option(
            "The data the model was trained on: its held-out examples are recognised by their hashes, the others "
            "serve methods with rehearsal. Repeatable."
        ),
    ] = None,
    unlabelled: Annotated[
        str | None,
        options.option(
            "Examples without labels instead of DATA: predictions are corrected for their class mix if its estimate is "
            "reliable. Needs held-out examples of the earlier domains (--earlier, or fit with --keep-sample)."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="progressive, ewc, lwf, replay, ...; auto grows a network that has slots.")
    ] = "auto",
    max_forgetting: Annotated[
        float, typer.Option(help="Points an earlier domain may lose; above, nothing is changed and the exit code is 3.")
    ] = 5.0,
    force: Annotated[
        bool, typer.Option("--force", help="Save the new version no matter how much was forgotten.")
    ] = False,
    budget: Annotated[
        str | None,
        options.option("Time limit such as 90s or 10m; the same command continues. Without it there is none."),
    ] = None,
) -> None:
    """Train on one more domain, score all earlier domains before and after, and save the new version if it holds up.

    Earlier versions stay in the folder: `holdfast rollback MODEL` lists them and restores any of them. Steps, batch
    and learning rate default to those of the fit.

    Examples:

    - `holdfast adapt models/reviews shoes.csv --earlier reviews.csv --domain shoes`

    - `holdfast adapt models/reviews shoes.csv --method lwf --steps 50 --max-forgetting 2`

    - `holdfast adapt models/reviews shoes.csv --method progressive --set method.slots=100`

    - `holdfast adapt models/reviews --unlabelled new.csv --earlier reviews.csv`

    Run the same command again to continue a stopped training; until it ends the old version stays in use.
    """
    from holdfast.adaptation.adapt import Terms
    from holdfast.adaptation.adapt import adapt as learn
    from holdfast.adaptation.unlabelled import adapt_unlabelled
    from holdfast.core.errors import BadInput

    shared = run.some("steps", "batch", "lr", "metric", "seed", "device", "settings")
    terms = Terms(method=method, max_forgetting=max_forgetting, force=force, **shared)
    sources: dict[str, Any] = {"earlier": earlier or (), "columns": run.columns, "skip_bad": run.skip_bad}
    if (data is None) == (unlabelled is None):
        raise BadInput("adapt needs labelled examples (DATA) or unlabelled ones (--unlabelled FILE): pass one of them")
    with progress(run.json) as listener:
        if unlabelled is not None:
            result = adapt_unlabelled(model, unlabelled, terms, **sources)
        else:
            assert data is not None
            result = learn(
                model, data, terms, domain=domain, watch=listener, budget=budget, started=started(), **sources
            )
    if run.json:
        fields = ("domain", "metric", "before", "after", "forgetting", "examples", "refused", "version")
        document = {name: getattr(result, name) for name in fields}
        print_json({**document, "notes": result.notes, "model": model})
    else:
        say(*result.notes)
        for name, after in result.after.items():
            lost = f", forgot {result.forgetting[name]:.1f} points" if name in result.forgetting else " (new)"
            before, count = _number(result.before[name]), result.examples[name]
            show(f"{name}: {result.metric} {before} -> {_number(after)} on {count}{lost}")
        if result.version is not None:
            say(f"version {result.version} of {model} is in use (undo with: holdfast rollback {model} N)")
        if result.refused:
            say(f"{'saved because of --force' if force else 'not saved, nothing was changed'}: {result.refused}")
    if result.version is None:
        raise typer.Exit(REFUSED)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def rollback(
    model: Annotated[Path, options.argument("A model folder.")],
    number: Annotated[
        int | None,
        typer.Argument(metavar="N", help="Version to use; without it, list all versions.", show_default=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """Switch to another version of a model that `holdfast adapt` changed, bit for bit; without a number, list them.

    No version is deleted, so you can switch forward again.

    Examples:

    - `holdfast rollback models/reviews`

    - `holdfast rollback models/reviews 1`
    """
    from holdfast.adaptation.adapt import ledger_of
    from holdfast.folders.versions import use_version

    ledger = ledger_of(model)
    current = ledger.current if number is None else use_version(model, ledger, number).number
    if json:
        print_json({"model": model, "current": current, "versions": list(map(asdict, ledger.versions))})
        return
    if number is not None:
        say(f"version {number} of {model} is in use")
        return
    for version in ledger.versions:
        scores = ", ".join(f"{name} {value:.3f}" for name, value in version.scores.items() if value is not None)
        origin = "" if version.parent is None else f", from version {version.parent}"
        in_use = " (in use)" if version.number == current else ""
        show(
            f"{version.number}{in_use}: {version.made} UTC, {version.method} learned {', '.join(version.learned)}"
            f"{origin}{', forced' if version.forced else ''}; {version.metric}: {scores}"
        )
