"""holdfast sweep: search each method's settings before comparing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli import options as engines
from holdfast.cli.console import give_json, say, show_records, watching


def sweep(
    data: options.Data,
    methods: options.Methods = "all",
    task: options.Task = None,
    trials: Annotated[int, typer.Option(help="Configurations of each method; the first is its defaults.")] = 20,
    seeds: options.Seeds = "3",
    sampler: Annotated[str, typer.Option(help="random, or optuna (needs the package).")] = "random",
    encoder: options.Encoder = "auto",
    tune: options.Tune = "auto",
    plan: options.Plan = "leave-one-out",
    select: options.Select = "train-validation",
    metric: options.Metric = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: options.Rate = None,
    out: options.Out = Path("runs/sweep"),
    device: options.Device = "auto",
    examples: options.Examples = None,
    column: options.Column = None,
    set_: options.Set = None,
    no_cache: options.NoCache = False,
    data_dir: options.DataDir = None,
    engine: engines.Engine = "local",
    jobs: engines.Jobs = None,
    address: engines.Address = None,
    cpus: engines.Cpus = None,
    gpus: engines.Gpus = None,
    json: options.Json = False,
) -> None:
    """Search each method's settings, choose by validation scores alone, and score what was chosen on the targets.

    Searched are a method's own settings, learning rate, weight decay and batch; what you set is fixed. The best
    configuration of each method over all targets is written for `holdfast fit --config`.

    Examples:

    - `holdfast sweep reviews.csv --methods erm --trials 20 --seeds 3`

    - `holdfast sweep reviews.csv --select leave-one-domain-out --batch 32 --out runs/search`

    - `holdfast fit reviews.csv --config runs/sweep/best-erm.json`

    - `holdfast report runs/sweep --out trials.html` shows every trial

    - `holdfast sweep reviews.csv --trials 100 --engine ray --address head:6379 --cpus 2`

    Run the same command again and it goes on where it was; with more trials it adds to those that are done.
    """
    from holdfast.run.settings import parse
    from holdfast.search.sweep import sweep as run

    where = engines.chosen(engine, jobs, address, cpus, gpus)
    with watching(json) as watch:
        done = run(
            data,
            methods=options.words(methods),
            trials=trials,
            seeds=options.seed_numbers(seeds),
            sampler=sampler,
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
            settings=options.with_task(parse(set_ or []), task),
            watch=watch,
            engine=where,
        )
    best = {name: str(path) for name, path in done.best.items()}
    if json:
        give_json(options.comparison_json(done) | {"chosen": done.choices(), "best": best})
        return
    for text in done.notes:
        say(text)
    show_records(done.told(), done.metric)
    for name, path in best.items():
        say(f"best settings of {name}: {path}")
    say(f"report: {done.report}")
