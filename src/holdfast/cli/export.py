"""holdfast export: a model folder as one program, ONNX or torch.export's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import give_json, say


def export(
    model: Annotated[Path, typer.Argument(help="A folder that `holdfast fit` wrote.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="The file to write: .onnx or .pt2.", show_default=False)],
    format: Annotated[str, typer.Option(help="onnx, or torch for a program of torch.export.")] = "onnx",
    pairs: Annotated[bool, typer.Option("--pairs", help="The model was trained on pairs of texts.")] = False,
    json: options.Json = False,
) -> None:
    """Write a classifier as one program that takes any number of examples, its memories included.

    Beside it lies a page of JSON: inputs by name, labels, and how raw examples become inputs; of a text encoder its
    tokenizer too. The program is run once and its probabilities are compared with the model's own.

    Examples:

    - `holdfast export models/reviews reviews.onnx`

    - `holdfast export models/reviews reviews.pt2 --format torch`
    """
    from holdfast.models.export import export as run

    done = run(model, out, format=format, pairs=pairs)
    if json:
        give_json({"program": str(done.program), "about": str(done.about), "difference": done.difference})
        return
    say(f"probabilities differ from the model's by at most {done.difference:.1g}")
    say(f"program: {done.program} (how to feed it: {done.about})")
