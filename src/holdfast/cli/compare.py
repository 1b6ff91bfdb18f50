"""holdfast compare: which method holds in a domain it has never seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import give_json, say, show, watching

if TYPE_CHECKING:
    from holdfast.comparison import Comparison


def compare(
    data: options.Data,
    methods: options.Methods = "all",
    seeds: options.Seeds = "3",
    encoder: options.Encoder = "auto",
    tune: options.Tune = "auto",
    plan: Annotated[str, typer.Option(help="The protocol; see `holdfast list protocols`.")] = "leave-one-out",
    select: Annotated[str, typer.Option(help="How the kept step is chosen; see `holdfast list selections`.")] = (
        "train-validation"
    ),
    metric: options.Metric = "accuracy",
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: options.Rate = None,
    out: options.Out = Path("runs/compare"),
    device: options.Device = "auto",
    examples: options.Examples = None,
    column: options.Column = None,
    set_: options.Set = None,
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

    Run the same command again and it goes on where it was; finished runs are not run twice.
    """
    from holdfast.comparison import compare as run
    from holdfast.settings import parse

    with watching(json) as watch:
        done = run(
            data,
            methods=options.words(methods),
            seeds=options.seed_numbers(seeds),
            out=out,
            encoder=encoder,
            tune=tune,
            plan=plan,
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
            settings=parse(set_ or []),
            watch=watch,
        )
    tell(done, json=json)


def tell(done: Comparison, *, json: bool) -> None:
    """The table and where the page is, for a person or a machine."""
    from holdfast.report.console import rich_table
    from holdfast.report.table import rows

    if json:
        give_json(options.comparison_json(done))
        return
    for note in done.notes:
        say(note)
    show(rich_table(rows(done.records, done.metric), done.metric))
    say(f"report: {done.report}")
