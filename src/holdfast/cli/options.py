"""The options that several verbs share, with the words of their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.core.errors import BadInput

Data = Annotated[
    str,
    typer.Argument(
        help="A csv, tsv, jsonl or parquet table, an .npz of arrays, a folder domain/class/image, a zip or folder of "
        "graphs, or a known name; settings of the data follow an @, as in nci1@shift=size.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")]
Encoder = Annotated[str, typer.Option(help="What turns examples into features; see `holdfast list encoders`.")]
Tune = Annotated[
    str, typer.Option(help="Which of its parameters learn: full, frozen, last:N, head+cls; auto by encoder.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Steps = Annotated[
    int | None,
    typer.Option(
        help="Training steps of each run, and of each phase of a rule that has two. [default: 300]", show_default=False
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        help="Examples of each domain in a batch; under torchrun, of each process. [default: 32]", show_default=False
    ),
]
Rate = Annotated[
    float | None,
    typer.Option("--lr", help="Learning rate. [default: by encoder and tuning]", show_default=False),
]
Plan = Annotated[str, typer.Option(help="The protocol; see `holdfast list protocols`.")]
Select = Annotated[str, typer.Option(help="How the kept step is chosen; see `holdfast list selections`.")]
Task = Annotated[str | None, typer.Option(help="See `holdfast list tasks`. [default: classify]", show_default=False)]
Metric = Annotated[
    str | None,
    typer.Option(
        help="What to select by and to show: accuracy, macro_f1, micro_f1, balanced_accuracy, mcc, roc_auc, nll, ece; "
        "of answers nll, perplexity, bleu2, w2v_similarity, distinct2; of tags entity_f1, entity_precision, "
        "entity_recall, accuracy, nll; of stretches answer_f1, exact_match, nll. [default: the first]",
        show_default=False,
    ),
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="Name a column: KEY=NAME with KEY text, premise, hypothesis, message, response, label, domain, split, "
        "time, id, features; tokens, tags; context, question, answers, answer_start. Repeatable.",
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any other setting: KEY=VALUE, such as encoder.length=64, plan.targets=films or schedule=cosine.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option(help="Where records, checkpoints and report.html go.")]
Seeds = Annotated[str, typer.Option(help="How many seeds, or the seeds themselves: 3, or 0,5,7.")]
Methods = Annotated[str, typer.Option(help="Comma separated, or all; see `holdfast list methods`.")]
Examples = Annotated[
    int | None,
    typer.Option(help="At most so many examples of each domain, drawn by seed.", show_default=False),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Compute frozen features anew in every step.")]
Log = Annotated[
    str | None,
    typer.Option(
        help="Write losses and validation scores to tensorboard, tensorboard:DIR or mlflow:URI as well.",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the files of known data sets; see `holdfast list datasets`.", show_default=False),
]
Analyse = Annotated[
    str,
    typer.Option(
        help="What to look at in each trained run, comma separated, or all; see `holdfast list analyses`.",
        show_default=False,
    ),
]


def pairs(given: list[str] | None) -> dict[str, str]:
    """KEY=NAME options as a dict."""
    found = {}
    for text in given or []:
        key, sign, name = text.partition("=")
        if not sign or not key:
            raise BadInput(f"--column takes KEY=NAME, such as --column text=review, not '{text}'")
        found[key] = name
    return found


def words(text: str) -> list[str]:
    """Comma separated words."""
    return [word.strip() for word in text.split(",") if word.strip()]


def with_task(settings: dict[str, Any], task: str | None) -> dict[str, Any]:
    """The settings with the task that an option names, if one does."""
    return settings if task is None else {**settings, "task": task}


def seed_numbers(text: str) -> int | list[int]:
    """`3` is how many, `0,5,7` are which."""
    try:
        return [int(word) for word in words(text)] if "," in text else int(text)
    except ValueError:
        raise BadInput(f"--seeds takes a number or a list such as 0,1,2, not '{text}'") from None


def comparison_json(done: Any) -> dict[str, Any]:
    """The contract of compare, sweep and reproduce for machines."""
    from dataclasses import asdict

    return {
        "table": done.table(),
        "records": [{"id": r.id, **asdict(r)} for r in done.records],
        "report": str(done.report),
        "notes": list(done.notes),
    }
