"""holdfast compare and holdfast sweep: which method generalises best to unseen domains, with which settings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import print_json, progress, say, show_summary
from holdfast.core.forking import start_early

if TYPE_CHECKING:
    from holdfast.api import Comparison


@options.takes(
    "context", "data", "methods", "task", "seeds", *options.MODEL, "out", "device", "examples", "column", "skip_bad",
    "unlabelled", "empty_labels", "set_", "config", "analyse", "no_cache", "data_dir", "log", *options.ENGINE,
    "no_model", "no_baselines", "no_combinations", "budget", "search_rate", "json",
    out=Path("runs/compare"),
)  # fmt: skip
def compare(
    context: typer.Context,
    data: options.Data,
    run: options.Options,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Do not train the chosen method on all domains.")
    ] = False,
    no_baselines: Annotated[
        bool,
        typer.Option("--no-baselines", help="Leave out the simple baselines: majority and logistic regression."),
    ] = False,
    no_combinations: Annotated[
        bool,
        typer.Option(
            "--no-combinations", help="Leave out stacking of baselines and network, averages over seeds, and soups."
        ),
    ] = False,
) -> None:
    """Compare methods: hold out one domain at a time, train on the others, test on it, with several seeds.

    Runs are worked off in order of value until the time is up, by default 5 minutes: a simple baseline and plain
    training, other simple baselines, the first seed of every method, other learning rates, further seeds. Large data
    starts with a sample that grows. Whatever has finished is a complete comparison; a run that fails is reported, and
    the others go on. Combinations of the finished runs come last: mixtures of simple baselines and the best network,
    and averages over seeds. The choice is the better of plain training and the best simple baseline, unless another
    row is significantly better. It is then trained on all domains and saved as a model folder under --out.

    Examples:

    - `holdfast compare reviews.csv`

    - `holdfast compare reviews.csv --methods erm --seeds 5 --metric macro_f1 --out runs/reviews`

    - `holdfast compare nli.parquet --column domain=genre --encoder minilm --tune full --steps 500`

    - `holdfast compare images/ --encoder resnet18 --set augment=true`

    - `holdfast compare reviews.csv --plan stream`

    - `holdfast compare reviews.csv --methods erm,coral --analyse a-distance,projection`

    - `holdfast compare reviews.csv --methods erm,memory+erm,mil --set neck.share=0.2`

    - `holdfast compare reviews.csv --config runs/sweep/best-erm.json --seeds 5`

    - `holdfast compare reviews.csv --budget 10m`

    - `holdfast compare reviews.csv --jobs auto`

    - `holdfast compare reviews.csv --engine ray --address head:6379 --gpus 0.5`

    - `torchrun --nproc_per_node 2 -m holdfast compare reviews.csv` (each run on two processes or GPUs)

    Run the same command again to continue; finished runs are not repeated.
    """
    start_early(run.jobs)  # before torch is imported
    from holdfast.api import compare as compare_methods
    from holdfast.core.parallel import process_group
    from holdfast.final_model import refit
    from holdfast.train.progress import with_logging

    settings, model = run.merged_settings(context), None if no_model else run.out / "model"
    chosen = {name: settings.pop(name) for name in ("encoder", "tune", "plan") if name in settings}
    if "method" in settings:
        chosen["methods"] = options.words(settings.pop("method"))
    keywords = {**run.keywords(), **chosen}  # checks them before processes wait for one another
    with (
        process_group(run.device),
        progress(run.json) as shown,
        with_logging(shown, run.log, run.out / "logs") as listener,
    ):
        result = compare_methods(
            data, settings=settings, watch=listener, model=model, baselines=not no_baselines,
            combinations=not no_combinations, search_rate=run.search_rate, unlabelled=run.unlabelled,
            empty_labels=run.empty_labels, analyse=options.words(run.analyse), **keywords,
        )  # fmt: skip
        if model is not None and not result.why_no_model:
            refit(result, model, device=run.device, cache=not run.no_cache, watch=listener)
    print_comparison(result, model, json=run.json)


def print_comparison(result: Comparison, model: Path | None, *, json: bool) -> None:
    """Print the table, the choice, and the paths of the report and, if it was written, the model."""
    from holdfast.folders.card import to_predict

    decision = result.decision
    if model is not None and (result.why_no_model or not (model / "config.json").is_file()):
        model = None
    if json:
        choice = None if decision is None else {**asdict(decision), "explanation": result.explanation}
        extra = {"choice": choice, "model": model}
        extra |= {
            "time": None if result.schedule is None else result.schedule.json(),
            "identical": dict(result.identical),
            "failed": [failure.json() for failure in result.failures],
        }
        print_json(options.comparison_json(result) | extra)
        return
    say(*result.notes)
    show_summary(result.summary)
    if decision is not None:
        say(f"choice: {decision.label}, because {decision.why}", result.explanation)
    say(f"report: {result.report}")
    if model is not None:
        example = to_predict(result.records[0].spec)
        say(f"model: {model} (predict with: holdfast predict {model} {example} --out predictions.csv)")
    elif reason := result.why_no_model:
        say(reason)


@options.takes(
    "data", "methods", "task", "trials", "seeds", "sampler", *options.MODEL, "out", "device", "examples", "column",
    "skip_bad", "set_", "no_cache", "data_dir", *options.ENGINE, "budget", "json",
    methods="all", out=Path("runs/sweep"),
)  # fmt: skip
def sweep(
    data: options.Data,
    run: options.Options,
    trials: Annotated[int, typer.Option(help="Configurations per method; the first has the default settings.")] = 20,
    sampler: Annotated[str, typer.Option(help="random, or optuna (needs the package optuna).")] = "random",
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
    start_early(run.jobs)  # before torch is imported
    from holdfast.search.sweep import sweep as search

    with progress(run.json) as listener:
        result = search(data, settings=run.settings, watch=listener, trials=trials, sampler=sampler, **run.keywords())
    best = {name: str(path) for name, path in result.best.items()}
    if run.json:
        print_json(options.comparison_json(result) | {"chosen": result.choices(), "best": best})
        return
    say(*result.notes)
    show_summary(result.summary)
    for name, path in best.items():
        say(f"best settings of {name}: {path}")
    say(f"report: {result.report}")
