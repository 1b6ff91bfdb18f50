"""holdfast compare: which method holds in a domain it has never seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from holdfast.cli import options
from holdfast.cli.config import Config, settle
from holdfast.cli.console import give_json, say, show_records, watching

if TYPE_CHECKING:
    from holdfast.comparison import Comparison


def compare(
    context: typer.Context,
    data: options.Data,
    methods: options.Methods = "all",
    task: options.Task = None,
    seeds: options.Seeds = "3",
    encoder: options.Encoder = "auto",
    tune: options.Tune = "auto",
    plan: options.Plan = "leave-one-out",
    select: options.Select = "train-validation",
    metric: options.Metric = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: options.Rate = None,
    out: options.Out = Path("runs/compare"),
    device: options.Device = "auto",
    examples: options.Examples = None,
    column: options.Column = None,
    set_: options.Set = None,
    config: Config = None,
    analyse: options.Analyse = "",
    no_cache: options.NoCache = False,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Compare methods: leave one domain out in turn, train on the others, score on it, with several seeds.

    Examples:

    - `holdfast compare reviews.csv`

    - `holdfast compare reviews.csv --methods erm --seeds 5 --metric macro_f1 --out runs/reviews`

    - `holdfast compare nli.parquet --column domain=genre --encoder minilm --tune full --steps 500`

    - `holdfast compare pictures/ --encoder resnet18 --set augment=true`

    - `holdfast compare reviews.csv --plan stream`

    - `holdfast compare reviews.csv --methods erm,coral --analyse a-distance,projection`

    - `holdfast compare reviews.csv --methods erm,memory+erm,mil --set neck.share=0.2`

    - `holdfast compare reviews.csv --config runs/sweep/best-erm.json --seeds 5`

    Run the same command again and it goes on where it was; finished runs are not run twice.
    """
    from holdfast.comparison import compare as run

    settings = options.with_task(settle(context, config, set_), task)
    with watching(json) as watch:
        done = run(
            data,
            methods=options.words(settings.pop("method", methods)),
            seeds=options.seed_numbers(seeds),
            out=out,
            encoder=settings.pop("encoder", encoder),
            tune=settings.pop("tune", tune),
            plan=settings.pop("plan", plan),
            select=select,
            metric=metric,
            steps=steps,
            batch=batch,
            lr=lr,
            device=device,
            cache=not no_cache,
            columns=options.pairs(column),
            examples=examples,
            data_dir=data_dir,
            settings=settings,
            analyse=options.words(analyse),
            watch=watch,
        )
    tell(done, json=json)


def tell(done: Comparison, *, json: bool) -> None:
    """The table and where the page is, for a person or a machine."""
    if json:
        give_json(options.comparison_json(done))
        return
    for text in done.notes:
        say(text)
    show_records(done.records, done.metric)
    say(f"report: {done.report}")
