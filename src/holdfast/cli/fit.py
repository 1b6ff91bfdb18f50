"""holdfast fit and holdfast pretrain: train a model folder, or continue pretraining a text encoder."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import print_json, progress, say, started


def fit(
    context: typer.Context,
    data: options.Data,
    method: Annotated[str, typer.Option(help="Training method; see `holdfast list methods`.")] = "erm",
    task: options.Task = None,
    encoder: options.Encoder = "auto",
    tune: options.Tune = "auto",
    metric: options.Metric = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: options.Rate = None,
    seed: options.Seed = 0,
    out: Annotated[Path, typer.Option(help="Model folder to write.")] = Path("runs/model"),
    keep_sample: Annotated[
        int,
        options.option(
            "Store this number of training and of held-out examples per domain in the model folder, so that "
            "`holdfast adapt` needs no other data. [default: 0]"
        ),
    ] = 0,
    left_out: Annotated[
        bool,
        typer.Option(
            "--left-out",
            help="Also train with each domain left out in turn, and store the outputs for it in the model folder, so "
            "that `holdfast predict --coverage` is calibrated on unseen domains.",
        ),
    ] = False,
    device: options.Device = "auto",
    examples: options.Examples = None,
    column: options.Column = None,
    skip_bad: options.SkipBad = False,
    unlabelled: options.Unlabelled = None,
    empty_labels: options.EmptyLabels = "error",
    pretrain_steps: Annotated[
        int,
        options.option(
            "First continue the masked-word training of the text encoder on the training and the unlabelled texts, for "
            "this number of steps. [default: 0]"
        ),
    ] = 0,
    set_: options.Set = None,
    config: options.Config = None,
    data_dir: options.DataDir = None,
    log: options.Log = None,
    search_rate: options.SearchRate = None,
    budget: Annotated[
        str | None,
        options.option(
            "Time limit such as 90s, 10m or 1h. Without it, the training at the default rate is not limited, and other "
            "rates are tried in the first 5 minutes."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Train one method on all domains and save a model folder: weights, configuration, preprocessing, model card.

    Examples:

    - `holdfast fit reviews.csv --out models/reviews`

    - `holdfast fit reviews.csv --method erm --encoder minilm --tune full --steps 500`

    - `holdfast fit talks.csv --task respond --steps 5000 --out models/talks`

    - `holdfast fit reviews.csv --keep-sample 200 --out models/reviews`

    - `holdfast fit reviews.csv --left-out --out models/reviews`

    - `holdfast fit reviews.csv --config runs/sweep/best-erm.json`

    - `holdfast fit reviews.csv --method coral --set neck=projection --unlabelled new.csv --out models/new`

    - `holdfast fit reviews.csv --log tensorboard`

    - `torchrun --nproc_per_node 2 -m holdfast fit reviews.csv` (on two processes or GPUs)

    Run the same command again to continue a stopped training.
    """
    from holdfast.api import fit as run
    from holdfast.core.parallel import process_group
    from holdfast.folders.card import to_predict
    from holdfast.train.progress import with_logging

    with (
        process_group(device),
        progress(json) as shown,
        with_logging(shown, log, out.with_name(f"{out.name}-logs")) as listener,
    ):
        result = run(
            data, method=method, out=out, encoder=encoder, tune=tune, metric=metric, steps=steps, batch=batch, lr=lr,
            seed=seed, keep_sample=keep_sample, left_out=left_out, device=device, columns=options.pairs(column),
            examples=examples, unlabelled=unlabelled, empty_labels=empty_labels, skip_bad=skip_bad, data_dir=data_dir,
            pretrain_steps=pretrain_steps, settings=options.merged_settings(context, config, set_, task),
            watch=listener, budget=budget, search_rate=search_rate, started=started(),
        )  # fmt: skip
    rate = result.rate
    if json:
        scores = {"model": str(out), "valid": result.valid, "metric": result.metric}
        print_json({**scores, "record": asdict(result.record), "rate": None if rate is None else rate.json()})
        return
    if rate is not None:
        say(f"learning rate {rate.rate:g}, the best of {len(rate.scores)} on validation rows")
    say(*result.notes)
    scores = ", ".join(f"{domain} {value:.3f}" for domain, value in result.valid.items() if value is not None)
    say(f"{result.metric} on held-out rows: {scores}")
    say(f"model: {out} (predict with: holdfast predict {out} {to_predict(result.record.spec)} --out predictions.csv)")


def pretrain(
    corpus: Annotated[
        str,
        options.argument(
            "A .txt file with one document per line, a folder of such files (one per domain), a table with a text "
            "column, or a known data set; @pack=2000 joins neighbouring documents up to 2000 characters."
        ),
    ],
    start: Annotated[
        str, typer.Option("--from", help="Encoder to start from: minilm, a folder, or a name on the hub.")
    ] = "minilm",
    out: Annotated[Path, typer.Option(help="Folder to write; use it with --encoder hf:FOLDER.")] = Path(
        "runs/pretrained"
    ),
    steps: Annotated[int, typer.Option(help="Training steps.")] = 1000,
    batch: options.Batch = None,
    lr: options.Rate = None,
    length: Annotated[int | None, options.option("Tokens per segment; longer texts are split. [default: 128]")] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    examples: options.Examples = None,
    column: options.Column = None,
    data_dir: options.DataDir = None,
    set_: options.Set = None,
    json: options.Json = False,
) -> None:
    """Continue masked-language-model pretraining on unlabelled text of a domain (DAPT) or of a task (TAPT).

    15% of the tokens are masked, chosen again in every step. Some texts per domain are held out; the loss on them
    before and after is printed, and report.html shows its curve.

    transformers can load the folder: config.json, model.safetensors, tokenizer.json.

    Examples:

    - `holdfast pretrain papers.txt --from roberta-base --out models/papers --steps 5000 --length 512`

    - `holdfast pretrain reviews.csv --from minilm --out models/reviews`

    - `holdfast compare reviews.csv --encoder hf:models/reviews --tune full`

    - `holdfast pretrain ncbi-disease --data-dir data --from minilm --out models/tapt-ncbi-disease --steps 300`

    Run the same command again to continue a stopped training.
    """
    from holdfast.adaptation.pretrain import pretrain as run

    with progress(json) as listener:
        result = run(
            corpus, encoder=start, out=out, steps=steps, batch=batch, lr=lr, length=length, seed=seed, device=device,
            columns=options.pairs(column), examples=examples, data_dir=data_dir, watch=listener,
            settings=options.parsed_settings(set_),
        )  # fmt: skip
    if json:
        print_json({
            "encoder": str(result.folder), "before": result.before, "after": result.after,
            "report": str(result.report), "record": asdict(result.record), "notes": list(result.notes),
        })  # fmt: skip
        return
    say(*result.notes)
    for domain, value in result.after.items():
        say(f"{domain}: masked-token loss {result.before[domain]:.3f} before, {value:.3f} after")
    say(f"encoder: {result.folder} (use it with --encoder hf:{result.folder})")
    say(f"report: {result.report}")
