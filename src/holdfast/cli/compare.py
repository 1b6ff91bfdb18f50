"""holdfast compare: which method generalises best to unseen domains."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import print_json, progress, say, show_summary, started
from holdfast.core.forking import start_early

if TYPE_CHECKING:
    from holdfast.api import Comparison
    from holdfast.train.progress import ProgressListener

NoBaselines = Annotated[
    bool, typer.Option("--no-baselines", help="Leave out the simple baselines: majority and logistic regression.")
]
NoCombinations = Annotated[
    bool,
    typer.Option(
        "--no-combinations", help="Leave out stacking of baselines and network, averages over seeds, and soups."
    ),
]
NoModel = Annotated[bool, typer.Option("--no-model", help="Do not train the chosen method on all domains.")]


def compare(
    context: typer.Context,
    data: options.Data,
    methods: options.Methods = "auto",
    task: options.Task = None,
    seeds: options.Seeds = "3",
    encoder: options.Encoder = "auto",
    tune: options.Tune = "auto",
    plan: options.Plan = "auto",
    select: options.Select = "train-validation",
    metric: options.Metric = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: options.Rate = None,
    out: options.Out = Path("runs/compare"),
    device: options.Device = "auto",
    examples: options.Examples = None,
    column: options.Column = None,
    skip_bad: options.SkipBad = False,
    unlabelled: options.Unlabelled = None,
    empty_labels: options.EmptyLabels = "error",
    set_: options.Set = None,
    config: options.Config = None,
    analyse: options.Analyse = "",
    no_cache: options.NoCache = False,
    data_dir: options.DataDir = None,
    log: options.Log = None,
    engine: options.Engine = "local",
    jobs: options.Jobs = None,
    address: options.Address = None,
    cpus: options.Cpus = None,
    gpus: options.Gpus = None,
    no_model: NoModel = False,
    no_baselines: NoBaselines = False,
    no_combinations: NoCombinations = False,
    budget: options.BudgetOption = None,
    search_rate: options.SearchRate = None,
    json: options.Json = False,
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
    start_early(jobs)  # before torch is imported
    from holdfast.api import compare as run
    from holdfast.core.parallel import process_group
    from holdfast.train.progress import with_logging

    settings = options.merged_settings(context, config, set_, task)
    keywords = options.run_keywords({**locals(), "methods": settings.pop("method", methods)})
    keywords |= {name: settings.pop(name) for name in ("encoder", "tune", "plan") if name in settings}
    folder = None if no_model else out / "model"
    with process_group(device), progress(json) as shown, with_logging(shown, log, out / "logs") as listener:
        result = run(
            data, settings=settings, watch=listener, model=folder, baselines=not no_baselines,
            combinations=not no_combinations, budget=budget, search_rate=search_rate, started=started(), **keywords,
        )  # fmt: skip
        model = train_chosen(result, folder, device=device, cache=not no_cache, listener=listener)
    print_comparison(result, model, json=json)


def train_chosen(
    result: Comparison, folder: Path | None, *, device: str, cache: bool, listener: ProgressListener
) -> Path | None:
    """Train the chosen configuration on all domains and return its folder, or None if there is none."""
    from holdfast.final_model import refit

    if folder is None or result.why_no_model:
        return None
    model = refit(result, folder, device=device, cache=cache, watch=listener)
    return model if (model / "config.json").is_file() else None


def print_comparison(result: Comparison, model: Path | None, *, json: bool) -> None:
    """Print the table, the choice, and the paths of report and model."""
    from holdfast.folders.card import to_predict

    decision = result.decision
    if json:
        choice = None if decision is None else {**asdict(decision), "explanation": result.explanation}
        extra = {"choice": choice, "model": None if model is None else str(model)}
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
