"""holdfast pretrain: a text encoder goes on learning masked words on the user's own texts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import give_json, say, watching


def pretrain(
    corpus: Annotated[
        str,
        typer.Argument(
            help="A .txt file with one document a line, a folder of them (a domain each), a table with a text "
            "column, or a known data set; @pack=2000 joins neighbours up to so many characters.",
            show_default=False,
        ),
    ],
    start: Annotated[
        str, typer.Option("--from", help="The encoder to start from: minilm, a folder, or a name on the hub.")
    ] = "minilm",
    out: Annotated[Path, typer.Option(help="The folder to write; use it with --encoder hf:FOLDER.")] = Path(
        "runs/pretrained"
    ),
    steps: Annotated[int, typer.Option(help="Training steps.")] = 1000,
    batch: options.Batch = None,
    lr: options.Rate = None,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens of a text; longer ones make several. [default: 128]", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of every chance.")] = 0,
    device: options.Device = "auto",
    examples: options.Examples = None,
    column: options.Column = None,
    data_dir: options.DataDir = None,
    set_: options.Set = None,
    json: options.Json = False,
) -> None:
    """Go on pretraining a text encoder on unlabelled texts: of your domain (DAPT), or of your task (TAPT).

    15 % of the words are hidden, others in every step, and the encoder learns to guess them. A few texts of each domain
    are held out; the loss on them before and after is told, and report.html has its curve.

    The folder is one that transformers loads: config.json, model.safetensors, tokenizer.json.

    Examples:

    - `holdfast pretrain papers.txt --from roberta-base --out models/papers --steps 5000 --length 512`

    - `holdfast pretrain reviews.csv --from minilm --out models/reviews`

    - `holdfast compare reviews.csv --encoder hf:models/reviews --tune full`

    - `holdfast pretrain ncbi-disease --data-dir data --from minilm --out models/tapt-ncbi-disease --steps 300`

    Stopped, it goes on where it was when the same command runs again.
    """
    from holdfast.models.pretrain import pretrain as run
    from holdfast.run.settings import parse

    with watching(json) as watch:
        done = run(
            corpus, encoder=start, out=out, steps=steps, batch=batch, lr=lr, length=length, seed=seed, device=device,
            columns=options.pairs(column), examples=examples, data_dir=data_dir, settings=parse(set_ or []),
            watch=watch,
        )  # fmt: skip
    if json:
        give_json(
            {
                "encoder": str(done.folder), "before": done.before, "after": done.after, "report": str(done.report),
                "record": asdict(done.record), "notes": list(done.notes),
            }
        )  # fmt: skip
        return
    for note in done.notes:
        say(note)
    for domain, value in done.after.items():
        say(f"{domain}: loss of a hidden word {done.before[domain]:.3f} before, {value:.3f} after")
    say(f"encoder: {done.folder} (use it: --encoder hf:{done.folder})")
    say(f"report: {done.report}")
