"""holdfast fit, pretrain, adapt and rollback: train model folders and encoders, and let a model learn new domains."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.console import print_json, progress, say, show, started


@options.takes(
    "context",
    "data",
    "method",
    "task",
    "encoder",
    "tune",
    "metric",
    "steps",
    "batch",
    "lr",
    "seed",
    "out",
    "keep_sample",
    "left_out",
    "device",
    "examples",
    "column",
    "skip_bad",
    "unlabelled",
    "empty_labels",
    "pretrain_steps",
    "set_",
    "config",
    "data_dir",
    "log",
    "search_rate",
    "budget",
    "json",
)
def fit(
    context: typer.Context,
    data: options.Data,
    run: options.Options,
    method: Annotated[str, typer.Option(help="Training method; see `holdfast list methods`.")] = "erm",
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
    pretrain_steps: Annotated[
        int,
        options.option(
            "First continue the masked-word training of the text encoder on the training and the unlabelled texts, for "
            "this number of steps. [default: 0]"
        ),
    ] = 0,
    budget: Annotated[
        str | None,
        options.option(
            "Time limit such as 90s, 10m or 1h. Without it, the training at the default rate is not limited, and other "
            "rates are tried in the first 5 minutes."
        ),
    ] = None,
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
    from holdfast.api import fit as train
    from holdfast.core.parallel import process_group
    from holdfast.folders.card import to_predict
    from holdfast.train.progress import with_logging

    settings = run.merged_settings(context)
    with (
        process_group(run.device),
        progress(run.json) as shown,
        with_logging(shown, run.log, out.with_name(f"{out.name}-logs")) as listener,
    ):
        result = train(
            data, method=method, out=out, keep_sample=keep_sample, left_out=left_out, columns=run.columns,
            pretrain_steps=pretrain_steps, settings=settings, watch=listener, budget=budget,
            started=started(),
            **run.some(
                "encoder", "tune", "metric", "steps", "batch", "lr", "seed", "device", "examples", "unlabelled",
                "empty_labels", "skip_bad", "data_dir", "search_rate",
            ),
        )  # fmt: skip
    rate = result.rate
    if run.json:
        scores = {"model": out, "valid": result.valid, "metric": result.metric}
        print_json({**scores, "record": asdict(result.record), "rate": None if rate is None else rate.json()})
        return
    if rate is not None:
        say(f"learning rate {rate.rate:g}, the best of {len(rate.scores)} on validation rows")
    say(*result.notes)
    scores = ", ".join(f"{domain} {value:.3f}" for domain, value in result.valid.items() if value is not None)
    say(f"{result.metric} on held-out rows: {scores}")
    say(f"model: {out} (predict with: holdfast predict {out} {to_predict(result.record.spec)} --out predictions.csv)")


@options.takes(
    "corpus", "start", "out", "steps", "batch", "lr", "length", "seed", "device", "examples", "column", "data_dir",
    "set_", "json",
)  # fmt: skip
def pretrain(
    corpus: Annotated[
        str,
        options.argument(
            "A .txt file with one document per line, a folder of such files (one per domain), a table with a text "
            "column, or a known data set; @pack=2000 joins neighbouring documents up to 2000 characters."
        ),
    ],
    run: options.Options,
    start: Annotated[
        str, typer.Option("--from", help="Encoder to start from: minilm, a folder, or a name on the hub.")
    ] = "minilm",
    out: Annotated[Path, typer.Option(help="Folder to write; use it with --encoder hf:FOLDER.")] = Path(
        "runs/pretrained"
    ),
    steps: Annotated[int, typer.Option(help="Training steps.")] = 1000,
    length: Annotated[int | None, options.option("Tokens per segment; longer texts are split. [default: 128]")] = None,
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
    from holdfast.adaptation.pretrain import pretrain as train

    with progress(run.json) as listener:
        result = train(
            corpus, encoder=start, out=out, steps=steps, length=length, columns=run.columns, settings=run.settings,
            watch=listener, **run.some("batch", "lr", "seed", "device", "examples", "data_dir"),
        )  # fmt: skip
    if run.json:
        print_json({
            "encoder": result.folder, "before": result.before, "after": result.after,
            "report": result.report, "record": asdict(result.record), "notes": result.notes,
        })  # fmt: skip
        return
    say(*result.notes)
    for domain, value in result.after.items():
        say(f"{domain}: masked-token loss {result.before[domain]:.3f} before, {value:.3f} after")
    say(f"encoder: {result.folder} (use it with --encoder hf:{result.folder})")
    say(f"report: {result.report}")


REFUSED = 3  # exit code if the model would forget too much


@options.takes(
    "model", "data", "domain", "earlier", "unlabelled", "method", "max_forgetting", "force", "metric", "steps",
    "batch", "lr", "seed", "device", "column", "skip_bad", "set_", "budget", "json",
)  # fmt: skip
def adapt(
    model: options.Model,
    run: options.Options,
    data: Annotated[
        str | None, typer.Argument(metavar="[DATA]", help="Labelled examples of the new domain.", show_default=False)
    ] = None,
    domain: Annotated[
        str | None,
        options.option(
            "The new domain: which domain of the file to use, or its name if the file has no domain column."
        ),
    ] = None,
    earlier: Annotated[
        list[str] | None,
        options.option(
            "The data the model was trained on: its held-out examples are recognised by their hashes, the others "
            "serve methods with rehearsal. Repeatable."
        ),
    ] = None,
    unlabelled: Annotated[
        str | None,
        options.option(
            "Examples without labels instead of DATA: predictions are corrected for their class mix if its estimate is "
            "reliable. Needs held-out examples of the earlier domains (--earlier, or fit with --keep-sample)."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="progressive, ewc, lwf, replay, ...; auto grows a network that has slots.")
    ] = "auto",
    max_forgetting: Annotated[
        float, typer.Option(help="Points an earlier domain may lose; above, nothing is changed and the exit code is 3.")
    ] = 5.0,
    force: Annotated[
        bool, typer.Option("--force", help="Save the new version no matter how much was forgotten.")
    ] = False,
    budget: Annotated[
        str | None,
        options.option("Time limit such as 90s or 10m; the same command continues. Without it there is none."),
    ] = None,
) -> None:
    """Train on one more domain, score all earlier domains before and after, and save the new version if it holds up.

    Earlier versions stay in the folder: `holdfast rollback MODEL` lists them and restores any of them. Steps, batch
    and learning rate default to those of the fit.

    Examples:

    - `holdfast adapt models/reviews shoes.csv --earlier reviews.csv --domain shoes`

    - `holdfast adapt models/reviews shoes.csv --method lwf --steps 50 --max-forgetting 2`

    - `holdfast adapt models/reviews shoes.csv --method progressive --set method.slots=100`

    - `holdfast adapt models/reviews --unlabelled new.csv --earlier reviews.csv`

    Run the same command again to continue a stopped training; until it ends the old version stays in use.
    """
    from holdfast.adaptation.adapt import Terms
    from holdfast.adaptation.adapt import adapt as learn
    from holdfast.adaptation.unlabelled import adapt_unlabelled
    from holdfast.core.errors import BadInput

    shared = run.some("steps", "batch", "lr", "metric", "seed", "device", "settings")
    terms = Terms(method=method, max_forgetting=max_forgetting, force=force, **shared)
    sources: dict[str, Any] = {"earlier": earlier or (), "columns": run.columns, "skip_bad": run.skip_bad}
    if (data is None) == (unlabelled is None):
        raise BadInput("adapt needs labelled examples (DATA) or unlabelled ones (--unlabelled FILE): pass one of them")
    with progress(run.json) as listener:
        if unlabelled is not None:
            result = adapt_unlabelled(model, unlabelled, terms, **sources)
        else:
            assert data is not None
            result = learn(
                model, data, terms, domain=domain, watch=listener, budget=budget, started=started(), **sources
            )
    if run.json:
        fields = ("domain", "metric", "before", "after", "forgetting", "examples", "refused", "version")
        document = {name: getattr(result, name) for name in fields}
        print_json({**document, "notes": result.notes, "model": model})
    else:
        say(*result.notes)
        for name, after in result.after.items():
            lost = f", forgot {result.forgetting[name]:.1f} points" if name in result.forgetting else " (new)"
            before, count = _number(result.before[name]), result.examples[name]
            show(f"{name}: {result.metric} {before} -> {_number(after)} on {count}{lost}")
        if result.version is not None:
            say(f"version {result.version} of {model} is in use (undo with: holdfast rollback {model} N)")
        if result.refused:
            say(f"{'saved because of --force' if force else 'not saved, nothing was changed'}: {result.refused}")
    if result.version is None:
        raise typer.Exit(REFUSED)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def rollback(
    model: Annotated[Path, options.argument("A model folder.")],
    number: Annotated[
        int | None,
        typer.Argument(metavar="N", help="Version to use; without it, list all versions.", show_default=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """Switch to another version of a model that `holdfast adapt` changed, bit for bit; without a number, list them.

    No version is deleted, so you can switch forward again.

    Examples:

    - `holdfast rollback models/reviews`

    - `holdfast rollback models/reviews 1`
    """
    from holdfast.adaptation.adapt import ledger_of
    from holdfast.folders.versions import use_version

    ledger = ledger_of(model)
    current = ledger.current if number is None else use_version(model, ledger, number).number
    if json:
        print_json({"model": model, "current": current, "versions": list(map(asdict, ledger.versions))})
        return
    if number is not None:
        say(f"version {number} of {model} is in use")
        return
    for version in ledger.versions:
        scores = ", ".join(f"{name} {value:.3f}" for name, value in version.scores.items() if value is not None)
        origin = "" if version.parent is None else f", from version {version.parent}"
        in_use = " (in use)" if version.number == current else ""
        show(
            f"{version.number}{in_use}: {version.made} UTC, {version.method} learned {', '.join(version.learned)}"
            f"{origin}{', forced' if version.forced else ''}; {version.metric}: {scores}"
        )
