"""The options that several verbs share, with the words of their help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from holdfast.core import processes
from holdfast.core.errors import BadInput, Damaged, unknown
from holdfast.core.files import read_json

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


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A JSON file of settings as --set takes them, with method, encoder and tune; options given here win.",
        show_default=False,
    ),
]
WORDS = ("method", "task", "encoder", "tune", "neck", "head", "metric", "plan", "select", "optimizer", "schedule")


def settle(context: typer.Context, config: Path | None, set_: list[str] | None) -> dict[str, Any]:
    """The file's settings without those that an option on the command line says, and --set over them."""
    from holdfast.run.settings import parse

    settings = {} if config is None else read_config(config)
    for option in context.params:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            settings.pop("method" if option == "methods" else option, None)
            if option == "steps":
                settings.pop("every", None)  # how often to validate goes with how long
    settings |= parse(set_ or [])
    for name in WORDS:
        if name in settings and not isinstance(settings[name], str):
            raise BadInput(f"{name} takes a word, not {settings[name]!r}")
    return settings


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a file; one sentence where it holds none."""
    try:
        found = read_json(path, max_bytes=1 << 20)
    except Damaged as error:
        if not path.is_file():
            told = "name one that `holdfast sweep` wrote, or a JSON object of settings"
            raise BadInput(f"no file {path}: {told}") from None
        raise BadInput(f'{error}: write an object such as {{"lr": 0.001}}') from None
    if not isinstance(found, dict):
        raise BadInput(f'{path} holds no JSON object: write one such as {{"lr": 0.001}}')
    return found


class Once(TyperCommand):
    """Options that may be repeated, such as `--set`, stay so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options: list[Any] = [each for each in self.params if each.param_type_name == "option"]
        named = {name: each for each in options if not each.multiple for name in (*each.opts, *each.secondary_opts)}
        seen: set[str] = set()
        for word in args[: args.index("--")] if "--" in args else args:
            name = word.partition("=")[0]
            if name not in named:
                continue
            option = named[name]
            if option.name in seen:
                several = "comma separated" in (option.help or "").lower()
                mend = "separate its values with commas" if several else "give it once"
                raise BadInput(f"{name} was given twice, and only one would count: {mend}")
            seen.add(option.name)
        return super().parse_args(ctx, args)


if TYPE_CHECKING:
    from holdfast.run.jobs import Engine as Made

ENGINES = ("local", "ray")
Engine = Annotated[str, typer.Option(help="Where the runs go: local, or ray for a cluster (needs the package ray).")]
Jobs = Annotated[
    str | None,
    typer.Option(
        help="Runs at once on this machine, each with its share of the cores; auto is one a core, or one a GPU. "
        "[default: 1]",
        show_default=False,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: a cluster such as head:6379, or auto. [default: one on this machine, for the while]",
        show_default=False,
    ),
]
Cpus = Annotated[
    float | None, typer.Option(help="With --engine ray: CPUs of each run. [default: 1]", show_default=False)
]
Gpus = Annotated[
    float | None,
    typer.Option(
        help="With --engine ray: GPUs of each run, or a part of one, such as 0.25. [default: 1 on a GPU, else 0]",
        show_default=False,
    ),
]


def chosen(engine: str, jobs: str | None, address: str | None, cpus: float | None, gpus: float | None) -> Made:
    """The engine that these options name; an option of the other one is a mistake."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if processes.world_size() > 1 and (engine != "local" or jobs not in (None, "1")):
        raise BadInput(
            "processes of torchrun share each run, one run after another: leave out --engine and --jobs, or start "
            "holdfast without torchrun to have many runs at once"
        )
    if engine == "local":
        from holdfast.run.local import local

        for name, value in (("address", address), ("cpus", cpus), ("gpus", gpus)):
            if value is not None:
                raise BadInput(f"--{name} is for a cluster: add --engine ray, or use --jobs for runs on this machine")
        return local(jobs or "1")
    from holdfast.run.ray import Ray

    if jobs is not None:
        raise BadInput("--jobs is for runs on this machine: with --engine ray say what each is given by --cpus")
    for name, value in (("cpus", cpus), ("gpus", gpus)):
        if value is not None and value < 0:
            raise BadInput(f"--{name} must be at least 0, not {value:g}")
    return Ray(address, 1.0 if cpus is None else cpus, gpus)
