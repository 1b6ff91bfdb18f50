"""holdfast predict: labels and probabilities, responses, tags, answers or hidden words, from a model folder."""

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
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="Probabilities as the network gives them, without its temperature.")
    ] = False,
    abstain_above: Annotated[
        float | None,
        typer.Option(help="No label where an example is more foreign than this percentile.", show_default=False),
    ] = None,
    device: options.Device = "auto",
    column: options.Column = None,
    json: options.Json = False,
) -> None:
    """Label new examples: id, label, one probability a class, and how foreign the example is.

    `foreign` says of 100 validation examples how many lie as near to the training examples, or nearer; `undecided`,
    where the model has a memory, how many of them read it as decidedly, or more. A table may be of any length.

    Other models answer messages (id, response), tag words (id, tokens, tags), answer questions from a text (id,
    answer, score), or find the words that texts hide behind [MASK] (id, words, scores). No domain, label, response,
    tag or answer is needed.

    Examples:

    - `holdfast predict models/reviews new.csv --out predictions.csv`

    - `holdfast predict models/reviews new.parquet --out predictions.parquet --column text=body`

    - `holdfast predict models/reviews new.csv --abstain-above 99 --out predictions.csv`

    - `holdfast predict models/names new.conll --out tags.jsonl`
    """
    from holdfast.models.predict import predict as run

    done = run(
        model, data, out, columns=options.pairs(column), device=device,
        calibrated=not uncalibrated, abstain_above=abstain_above,
    )  # fmt: skip
    if json:
        give_json(
            {
                "predictions": done.examples,
                "counts": done.counts,
                "accuracy": done.accuracy,
                "scored": done.scored,
                "abstained": done.abstained,
                "notes": list(done.notes),
                "out": str(done.path),
            }
        )
        return
    for note in done.notes:
        say(note)
    told = ", ".join(f"{label}: {count}" for label, count in done.counts.items())
    say(told or f"{done.what}: {done.examples}")
    if abstain_above is not None:
        say(f"without a label, since they are too foreign: {done.abstained}")
    if done.accuracy is not None:
        say(f"accuracy {done.accuracy:.3f} on the {done.scored} examples whose label the model knows")
    say(f"predictions: {done.path}")
