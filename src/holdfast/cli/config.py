"""--config: settings from a JSON file, such as one that `holdfast sweep` wrote; the command line goes first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.core.errors import BadInput, Damaged
from holdfast.core.files import read_json

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A JSON file of settings as --set takes them, with method, encoder and tune; options given here win.",
        show_default=False,
    ),
]
WORDS = ("method", "task", "encoder", "tune", "neck", "head", "metric", "plan", "select", "optimizer", "schedule")


def settle(context: typer.Context, config: Path | None, set_: list[str] | None) -> dict[str, Any]:
    """The file's settings without those that an option on the command line says, and --set over them."""
    from holdfast.settings import parse

    settings = {} if config is None else read_config(config)
    for option in context.params:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            settings.pop("method" if option == "methods" else option, None)
            if option == "steps":
                settings.pop("every", None)  # how often to validate goes with how long
    settings |= parse(set_ or [])
    for name in WORDS:
        if name in settings and not isinstance(settings[name], str):
            raise BadInput(f"{name} takes a word, not {settings[name]!r}")
    return settings


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a file; one sentence where it holds none."""
    try:
        found = read_json(path, most=1 << 20)
    except Damaged as error:
        if not path.is_file():
            told = "name one that `holdfast sweep` wrote, or a JSON object of settings"
            raise BadInput(f"no file {path}: {told}") from None
        raise BadInput(f'{error}: write an object such as {{"lr": 0.001}}') from None
    if not isinstance(found, dict):
        raise BadInput(f'{path} holds no JSON object: write one such as {{"lr": 0.001}}')
    return found
