"""holdfast demo: the main job on real data that comes in a package, to a report one can open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.compare import kept, tell
from holdfast.cli.console import say, watching


def demo(
    out: options.Out = Path("runs/demo"),
    seeds: options.Seeds = "3",
    methods: options.Methods = "all",
    examples: Annotated[int, typer.Option(help="Sentences of each domain; 0 takes all 23,000.")] = 600,
    encoder: options.Encoder = "minilm",
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Sentiment across tweets, films, products and news: train on three of them, be scored on the fourth.

    The sentences come with the source archive of the package vaderSentiment 3.3.2 (MIT), fetched once and checked
    by its hash; MiniLM encodes them once. Takes a few minutes on two cores.

    Examples:

    - `holdfast demo`

    - `holdfast demo --examples 0 --seeds 5`

    - `holdfast demo --data-dir folder/with/vaderSentiment-3.3.2.tar.gz`
    """
    from holdfast.comparison import compare as run

    if not json:
        say("Four domains of rated sentences; each is left out in turn and never seen in training.")
    with watching(json) as watch:
        done = run(
            "vader",
            methods=options.words(methods),
            seeds=options.seed_numbers(seeds),
            out=out,
            encoder=encoder,
            metric="macro_f1",
            steps=200,
            settings={"neck": "projection"},  # so that rules about features have something to move
            device=device,
            examples=examples or None,
            data_dir=data_dir,
            watch=watch,
            model=out / "model",
        )
        model = kept(done, out / "model", device=device, cache=True, watch=watch)
    tell(done, model, json=json)
