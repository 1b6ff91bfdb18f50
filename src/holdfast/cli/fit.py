"""holdfast fit: train on all domains and save a model folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import give_json, say, watching
from holdfast.cli.options import Config, settle


def fit(
    context: typer.Context,
    data: options.Data,
    method: Annotated[str, typer.Option(help="See `holdfast list methods`.")] = "erm",
    task: options.Task = None,
    encoder: options.Encoder = "auto",
    tune: options.Tune = "auto",
    metric: options.Metric = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: options.Rate = None,
    seed: Annotated[int, typer.Option(help="The seed of every chance.")] = 0,
    out: Annotated[Path, typer.Option(help="The model folder to write.")] = Path("runs/model"),
    keep_sample: Annotated[
        int,
        typer.Option(
            help="Keep so many training and so many held-out examples of each domain in the model folder, so that "
            "`holdfast adapt` needs no other data. [default: none]",
            show_default=False,
        ),
    ] = 0,
    device: options.Device = "auto",
    examples: options.Examples = None,
    column: options.Column = None,
    set_: options.Set = None,
    config: Config = None,
    data_dir: options.DataDir = None,
    log: options.Log = None,
    json: options.Json = False,
) -> None:
    """Train one method on all domains and save a model folder: weights, configuration, preparation, card.

    Examples:

    - `holdfast fit reviews.csv --out models/reviews`

    - `holdfast fit reviews.csv --method erm --encoder minilm --tune full --steps 500`

    - `holdfast fit talks.csv --task respond --steps 5000 --out models/talks`

    - `holdfast fit reviews.csv --keep-sample 200 --out models/reviews`

    - `holdfast fit reviews.csv --config runs/sweep/best-erm.json`

    - `holdfast fit reviews.csv --log tensorboard`

    - `torchrun --nproc_per_node 2 -m holdfast fit reviews.csv` (on two processes or GPUs)

    Stopped, it goes on where it was when the same command runs again.
    """
    from holdfast.comparison import training_data
    from holdfast.core.parallel import process_group
    from holdfast.estimator import DomainClassifier
    from holdfast.models.card import to_predict
    from holdfast.models.saved import check_folder
    from holdfast.run.progress import logged

    settings = options.with_task(settle(context, config, set_), task)
    metric = settings.pop("metric", metric)
    with process_group(device):
        check_folder(out)
        dataset = training_data(data, task=settings.get("task"), columns=options.pairs(column), data_dir=data_dir)
        if examples is not None:
            dataset = dataset.limited(examples)
        classifier = DomainClassifier(
            settings.pop("method", method), encoder=settings.pop("encoder", encoder), tune=settings.pop("tune", tune),
            steps=steps, batch=batch, lr=lr, metric=metric, seed=seed, device=device, settings=settings,
            keep_sample=keep_sample,
        )  # fmt: skip
        with watching(json) as shown, logged(shown, log, out.with_name(f"{out.name}-logs")) as watch:
            classifier.fit_dataset(dataset, folder=out, watch=watch)
    record = classifier.record_
    metric = str(record.spec["metric"])
    valid = {domain: scores[metric] for domain, scores in record.stages[-1]["valid"].items()}
    if json:
        give_json({"model": str(out), "valid": valid, "metric": metric, "record": asdict(record)})
        return
    for note in dataset.notes:
        say(note)
    told = ", ".join(f"{domain} {value:.3f}" for domain, value in valid.items() if value is not None)
    say(f"{metric} on held-out rows: {told}")
    say(f"model: {out} (use it: holdfast predict {out} {to_predict(record.spec)} --out predictions.csv)")
