"""holdfast predict: labels and probabilities, responses, tags or answers, from a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import give_json, say


def predict(
    model: Annotated[Path, typer.Argument(help="A folder that `holdfast fit` wrote.", show_default=False)],
    data: options.Data,
    out: Annotated[Path, typer.Option(help="The file to write; .csv, .jsonl or .parquet by its ending.")] = Path(
        "predictions.csv"
    ),
    device: options.Device = "auto",
    column: options.Column = None,
    json: options.Json = False,
) -> None:
    """Label new examples: id, label and one probability a class.

    Other models answer messages (id, response), tag words (id, tokens, tags), or answer questions from a text (id,
    answer, score). No domain, label, response, tag or answer is needed.

    Examples:

    - `holdfast predict models/reviews new.csv --out predictions.csv`

    - `holdfast predict models/reviews new.parquet --out predictions.parquet --column text=body`

    - `holdfast predict models/names new.conll --out tags.jsonl`
    """
    from holdfast.prediction import predict as run

    done = run(model, data, out, columns=options.pairs(column), device=device)
    if json:
        give_json(
            {
                "predictions": done.examples,
                "counts": done.counts,
                "accuracy": done.accuracy,
                "scored": done.scored,
                "out": str(done.path),
            }
        )
        return
    told = ", ".join(f"{label}: {count}" for label, count in done.counts.items())
    say(told or f"{done.what}: {done.examples}")
    if done.accuracy is not None:
        say(f"accuracy {done.accuracy:.3f} on the {done.scored} examples whose label the model knows")
    say(f"predictions: {done.path}")
