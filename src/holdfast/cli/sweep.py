"""holdfast sweep: hyperparameter search per method."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import print_json, progress, say, show_summary, started
from holdfast.core.forking import start_early


def sweep(
    data: options.Data,
    methods: options.Methods = "all",
    task: options.Task = None,
    trials: Annotated[int, typer.Option(help="Configurations per method; the first has the default settings.")] = 20,
    seeds: options.Seeds = "3",
    sampler: Annotated[str, typer.Option(help="random, or optuna (needs the package optuna).")] = "random",
    encoder: options.Encoder = "auto",
    tune: options.Tune = "auto",
    plan: options.Plan = "auto",
    select: options.Select = "train-validation",
    metric: options.Metric = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: options.Rate = None,
    out: options.Out = Path("runs/sweep"),
    device: options.Device = "auto",
    examples: options.Examples = None,
    column: options.Column = None,
    skip_bad: options.SkipBad = False,
    set_: options.Set = None,
    no_cache: options.NoCache = False,
    data_dir: options.DataDir = None,
    engine: options.Engine = "local",
    jobs: options.Jobs = None,
    address: options.Address = None,
    cpus: options.Cpus = None,
    gpus: options.Gpus = None,
    budget: options.BudgetOption = None,
    json: options.Json = False,
) -> None:
    """Search the hyperparameters of each method, choose by validation scores, and test the chosen configurations.

    Trials are worked off one number after another until the time is up, by default 5 minutes; trial 0 of every method
    comes first, and the trials that have all runs are compared. The search covers a method's own settings, learning
    rate, weight decay and batch size; settings you pass are fixed.
    The best configuration per method over all targets is written for `holdfast fit --config`.

    Examples:

    - `holdfast sweep reviews.csv --methods erm --trials 20 --seeds 3`

    - `holdfast sweep reviews.csv --select leave-one-domain-out --batch 32 --out runs/search`

    - `holdfast fit reviews.csv --config runs/sweep/best-erm.json`

    - `holdfast report runs/sweep --out trials.html` shows all trials

    - `holdfast sweep reviews.csv --trials 50 --budget 2h`

    - `holdfast sweep reviews.csv --trials 100 --engine ray --address head:6379 --cpus 2`

    Repeat the command to resume; with more trials it adds to the finished ones.
    """
    start_early(jobs)  # before torch is imported
    from holdfast.search.sweep import sweep as run

    keywords = options.run_keywords(locals())
    with progress(json) as listener:
        result = run(
            data,
            settings=options.parsed_settings(set_, task),
            watch=listener,
            budget=budget,
            started=started(),
            **keywords,
        )
    best = {name: str(path) for name, path in result.best.items()}
    if json:
        print_json(options.comparison_json(result) | {"chosen": result.choices(), "best": best})
        return
    say(*result.notes)
    show_summary(result.summary)
    for name, path in best.items():
        say(f"best settings of {name}: {path}")
    say(f"report: {result.report}")
