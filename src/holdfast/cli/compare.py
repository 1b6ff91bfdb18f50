"""holdfast compare: which method holds in a domain it has never seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options
from holdfast.cli import options as engines
from holdfast.cli.console import give_json, say, show_records, watching
from holdfast.cli.options import Config, settle

if TYPE_CHECKING:
    from holdfast.comparison import Comparison
    from holdfast.run.progress import ProgressListener

NoModel = Annotated[bool, typer.Option("--no-model", help="Compare and choose, but train no model on all domains.")]


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
    log: options.Log = None,
    engine: engines.Engine = "local",
    jobs: engines.Jobs = None,
    address: engines.Address = None,
    cpus: engines.Cpus = None,
    gpus: engines.Gpus = None,
    no_model: NoModel = False,
    json: options.Json = False,
) -> None:
    """Compare methods: leave one domain out in turn, train on the others, score on it, with several seeds.

    At the end a choice is made, with its reason: a method other than erm only if it is better by more than chance. The
    choice is trained once more, on all domains, and saved as a model folder under --out.

    Examples:

    - `holdfast compare reviews.csv`

    - `holdfast compare reviews.csv --methods erm --seeds 5 --metric macro_f1 --out runs/reviews`

    - `holdfast compare nli.parquet --column domain=genre --encoder minilm --tune full --steps 500`

    - `holdfast compare pictures/ --encoder resnet18 --set augment=true`

    - `holdfast compare reviews.csv --plan stream`

    - `holdfast compare reviews.csv --methods erm,coral --analyse a-distance,projection`

    - `holdfast compare reviews.csv --methods erm,memory+erm,mil --set neck.share=0.2`

    - `holdfast compare reviews.csv --config runs/sweep/best-erm.json --seeds 5`

    - `holdfast compare reviews.csv --jobs auto`

    - `holdfast compare reviews.csv --engine ray --address head:6379 --gpus 0.5`

    - `torchrun --nproc_per_node 2 -m holdfast compare reviews.csv` (each run on two processes or GPUs)

    Run the same command again and it goes on where it was; finished runs are not run twice.
    """
    from holdfast.comparison import compare as run
    from holdfast.core.parallel import process_group
    from holdfast.run.progress import logged

    settings = options.with_task(settle(context, config, set_), task)
    where = engines.chosen(engine, jobs, address, cpus, gpus)
    with process_group(device), watching(json) as shown, logged(shown, log, out / "logs") as watch:
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
            engine=where,
            model=None if no_model else out / "model",
        )
        model = None if no_model else kept(done, out / "model", device=device, cache=not no_cache, watch=watch)
    tell(done, model, json=json)


def kept(done: Comparison, folder: Path, *, device: str, cache: bool, watch: ProgressListener) -> Path | None:
    """The folder of the chosen model, trained on all domains; None where there can be none."""
    from holdfast.models.refit import refit

    return None if done.why_no_model else refit(done, folder, device=device, cache=cache, watch=watch)


def tell(done: Comparison, model: Path | None, *, json: bool) -> None:
    """The table, the choice and where page and model are, for a person or a machine."""
    from holdfast.models.card import to_predict

    chosen = done.decision
    if json:
        choice = None if chosen is None else {"label": chosen.label, "why": chosen.why, "spec": chosen.spec}
        more = {"choice": choice, "model": None if model is None else str(model)}
        give_json(options.comparison_json(done) | more)
        return
    for text in done.notes:
        say(text)
    show_records(done.records, done.metric)
    if chosen is not None:
        say(f"choice: {chosen.label}, because {chosen.why}")
    say(f"report: {done.report}")
    if model is not None:
        new = to_predict(done.records[0].spec)
        say(f"model: {model} (use it: holdfast predict {model} {new} --out predictions.csv)")
    elif reason := done.why_no_model:
        say(reason)
