"""holdfast adapt: a model folder learns one more domain, if it forgets little of the earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import give_json, say, show, watching

REFUSED = 3  # the exit code where the model would forget too much: nothing was wrong with the command


def adapt(
    model: Annotated[Path, typer.Argument(help="A folder that `holdfast fit` wrote.", show_default=False)],
    data: options.Data,
    domain: Annotated[
        str | None,
        typer.Option(help="The new domain: which one of the file, or its name where it has none.", show_default=False),
    ] = None,
    earlier: Annotated[
        list[str] | None,
        typer.Option(
            help="The data the model learned from, again: its held-out examples are found by their hashes, the others "
            "serve rules that rehearse. Repeatable.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="progressive, ewc, lwf, replay, ...; auto grows where the network has slots.")
    ] = "auto",
    max_forgetting: Annotated[
        float,
        typer.Option(help="Points that an earlier domain may lose; above, nothing is changed and the exit code is 3."),
    ] = 5.0,
    force: Annotated[
        bool, typer.Option("--force", help="Keep the new version whatever it forgot, measured or not.")
    ] = False,
    metric: options.Metric = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: options.Rate = None,
    seed: Annotated[int, typer.Option(help="The seed of every chance.")] = 0,
    device: options.Device = "auto",
    column: options.Column = None,
    set_: options.Set = None,
    json: options.Json = False,
) -> None:
    """Learn one more domain, score every earlier one before and after, and keep the new version if it holds.

    What the model was stays in its folder: `holdfast rollback MODEL` lists the versions and gives any of them back.
    Steps, batch and learning rate are those of the fit unless given.

    Examples:

    - `holdfast adapt models/reviews shoes.csv --earlier reviews.csv --domain shoes`

    - `holdfast adapt models/reviews shoes.csv --method lwf --steps 50 --max-forgetting 2`

    - `holdfast adapt models/reviews shoes.csv --method progressive --set method.slots=100`

    Stopped, it goes on where it was when the same command runs again; until it is done the old version is whole.
    """
    from holdfast.models.adapt import Terms
    from holdfast.models.adapt import adapt as run
    from holdfast.run.settings import parse

    terms = Terms(
        method=method, max_forgetting=max_forgetting, force=force, steps=steps, batch=batch, lr=lr, metric=metric,
        seed=seed, device=device, settings=parse(set_ or []),
    )  # fmt: skip
    with watching(json) as watch:
        done = run(model, data, terms, domain=domain, earlier=earlier or (), columns=options.pairs(column), watch=watch)
    if json:
        told = ("domain", "metric", "before", "after", "forgetting", "examples", "refused", "version")
        give_json({**{name: getattr(done, name) for name in told}, "notes": list(done.notes), "model": str(model)})
    else:
        for note in done.notes:
            say(note)
        for name, after in done.after.items():
            lost = f", forgot {done.forgetting[name]:.1f} points" if name in done.forgetting else " (new)"
            show(
                f"{name}: {done.metric} {_number(done.before[name])} -> {_number(after)} on {done.examples[name]}{lost}"
            )
        if done.version is not None:
            say(f"version {done.version} of {model} is in use (go back: holdfast rollback {model} N)")
        if done.refused:
            say(f"{'kept all the same' if force else 'not kept, and nothing was changed'}: {done.refused}")
    if done.version is None:
        raise typer.Exit(REFUSED)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
