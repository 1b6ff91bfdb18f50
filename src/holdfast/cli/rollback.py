"""holdfast rollback: the versions of a model folder, and back to any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import give_json, say, show


def rollback(
    model: Annotated[Path, typer.Argument(help="A model folder.", show_default=False)],
    number: Annotated[
        int | None,
        typer.Argument(metavar="N", help="The version to use; without it they are listed.", show_default=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """Use another version of a model that `holdfast adapt` changed, bit for bit as it was; without a number, list them.

    No version is lost: one that was given up can be taken again.

    Examples:

    - `holdfast rollback models/reviews`

    - `holdfast rollback models/reviews 1`
    """
    from dataclasses import asdict

    from holdfast.models.adapt import ledger_of
    from holdfast.models.versions import use_version

    ledger = ledger_of(model)
    current = ledger.current if number is None else use_version(model, ledger, number).number
    if json:
        give_json({"model": str(model), "current": current, "versions": [asdict(each) for each in ledger.versions]})
        return
    if number is not None:
        say(f"version {number} of {model} is in use")
        return
    for each in ledger.versions:
        scores = ", ".join(f"{name} {value:.3f}" for name, value in each.scores.items() if value is not None)
        origin = "" if each.parent is None else f", from version {each.parent}"
        used = " (in use)" if each.number == current else ""
        show(
            f"{each.number}{used}: {each.made} UTC, {each.method} learned {', '.join(each.learned)}{origin}"
            f"{', forced' if each.forced else ''}; {each.metric}: {scores}"
        )
