"""Options shared by several commands, and how their values are parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from holdfast.core import processes
from holdfast.core.errors import BadInput, Damaged, unknown
from holdfast.core.files import read_json

if TYPE_CHECKING:
    from holdfast.train.jobs import Engine as RunEngine

ENGINES = ("local", "ray")
STRING_SETTINGS = (
    "method", "task", "encoder", "tune", "neck", "head", "metric", "plan", "select", "optimizer", "schedule",
)  # fmt: skip

UNCHANGED = (
    "trials", "sampler", "out", "encoder", "tune", "plan", "select", "metric", "steps", "batch", "lr", "device",
    "examples", "data_dir", "unlabelled", "empty_labels", "skip_bad",
)  # fmt: skip
WORD_LISTS = ("methods", "rows", "columns", "analyse")  # comma separated


def option(help: str, *flags: str) -> Any:
    """Declare an option without a default, or with a default that its help text states."""
    return typer.Option(*flags, help=help, show_default=False)


def argument(help: str) -> Any:
    """Declare an argument whose default is not shown."""
    return typer.Argument(help=help, show_default=False)


Data = Annotated[
    str,
    argument(
        "A csv, tsv, jsonl or parquet table, an .npz file of arrays, a folder domain/class/image, a zip file or "
        "folder of graphs, or the name of a known data set; options follow an @, as in nci1@shift=size."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout and nothing else.")]
Encoder = Annotated[str, typer.Option(help="Encoder that turns examples into features; see `holdfast list encoders`.")]
Tune = Annotated[
    str,
    typer.Option(
        help="Encoder parameters to train: frozen, full, lp-ft (head on frozen features, then full), lora:R (adapters "
        "of rank R, needs the package peft), last:N, head+cls; auto tunes pretrained encoders on a GPU only."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Steps = Annotated[
    int | None,
    option(
        "Training steps per run, and per phase of a two-phase method. [default: 300; if the encoder is trained, 8 "
        "passes over the data, 300 to 3000 steps, with early stopping]"
    ),
]
Batch = Annotated[int | None, option("Examples per domain in a batch; under torchrun, per process. [default: 32]")]
Rate = Annotated[float | None, option("Learning rate. [default: by encoder and tuning]", "--lr")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Plan = Annotated[
    str,
    typer.Option(
        help="Evaluation protocol; see `holdfast list protocols`. auto is leave-one-out for up to 8 domains, and "
        "leave-groups-out for more."
    ),
]
Select = Annotated[str, typer.Option(help="Model selection; see `holdfast list selections`.")]
Task = Annotated[str | None, option("Task; see `holdfast list tasks`. [default: classify]")]
Metric = Annotated[
    str | None,
    option(
        "Metric for model selection and tables: accuracy, macro_f1, micro_f1, balanced_accuracy, mcc, roc_auc, nll, "
        "ece; for responses nll, perplexity, bleu2, w2v_similarity, distinct2; for tags entity_f1, entity_precision, "
        "entity_recall, accuracy, nll; for answer spans answer_f1, exact_match, nll. [default: the first of the task]"
    ),
]
Column = Annotated[
    list[str] | None,
    option(
        "Name a column: KEY=NAME with KEY text, premise, hypothesis, message, response, label, domain, split, time, "
        "id, features, image; tokens, tags; context, question, answers, answer_start. Repeatable.",
        "--column",
    ),
]
Set = Annotated[
    list[str] | None,
    option(
        "Any other setting: KEY=VALUE, such as encoder.length=64, plan.targets=films, schedule=cosine or average=none.",
        "--set",
    ),
]
Config = Annotated[
    Path | None,
    option("JSON file of settings as in --set, plus method, encoder and tune; command-line options take precedence."),
]
Out = Annotated[Path, typer.Option(help="Folder for records, checkpoints and report.html.")]
Seeds = Annotated[str, typer.Option(help="Number of seeds, or a list of seeds: 3, or 0,5,7.")]
Methods = Annotated[
    str,
    typer.Option(
        help="Comma separated methods; auto: erm, its moving average, one per family, and the systems that fit; "
        "all: every method that fits; see `holdfast list methods`."
    ),
]
BudgetOption = Annotated[
    str | None,
    option(
        "Time limit such as 90s, 10m or 1h, in which runs are worked off in order of value; none runs everything. The "
        "same command continues. [default: 5m]",
        "--budget",
    ),
]
SearchRate = Annotated[
    bool | None,
    option(
        "Also try a third and three times the default learning rate, of plain training and of the leading methods, "
        "chosen on source domains. [default: for encoders that learn, unless --lr is set]",
        "--search-rate/--no-search-rate",
    ),
]
Examples = Annotated[int | None, option("Use at most this number of examples per domain, sampled by seed.")]
Unlabelled = Annotated[
    str | None,
    option(
        "Examples without labels from the domain that the model will be used on, in the form of DATA. coral, mmd and "
        "dann align their features, and fit corrects a change of the class mix. A domain column is optional."
    ),
]
EmptyLabels = Annotated[
    str,
    typer.Option(help="Rows of DATA with an empty label: error, or unlabelled to use them as --unlabelled examples."),
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Leave rows of a table with bad cells out and count them: missing labels, domains or texts, values that "
        "are no numbers, incomplete rows. Without it they are one error.",
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do not cache features of a frozen encoder.")]
Log = Annotated[
    str | None,
    option(
        "Also log losses and validation scores to tensorboard, tensorboard:DIR, mlflow:URI, wandb or wandb:PROJECT."
    ),
]
DataDir = Annotated[Path | None, option("Folder with the files of known data sets; see `holdfast list datasets`.")]
Analyse = Annotated[str, option("Comma separated analyses of each trained run, or all; see `holdfast list analyses`.")]
Engine = Annotated[str, typer.Option(help="Where runs execute: local, or ray for a cluster (needs the package ray).")]
Jobs = Annotated[
    str | None,
    option(
        "Concurrent runs on this machine, each with its share of the cores; auto is one per core for small runs, and "
        "one at a time for others; on a GPU, it is the number that fits the memory, measured during the first run. "
        "[default: auto]"
    ),
]
Address = Annotated[
    str | None,
    option("With --engine ray: address of a cluster such as head:6379, or auto. [default: a temporary local cluster]"),
]
Cpus = Annotated[float | None, option("With --engine ray: CPUs per run. [default: 1]")]
Gpus = Annotated[
    float | None, option("With --engine ray: GPUs per run, or a fraction such as 0.25. [default: 1 on a GPU, else 0]")
]
Model = Annotated[Path, argument("A model folder that `holdfast fit` wrote.")]


def pairs(column: list[str] | None) -> dict[str, str]:
    """Parse KEY=NAME options."""
    columns = {}
    for text in column or []:
        key, sign, name = text.partition("=")
        if not sign or not key:
            raise BadInput(f"--column takes KEY=NAME, such as --column text=review; got '{text}'")
        columns[key] = f"{columns[key]},{name}" if columns.get(key) else name
    return columns


def words(text: str) -> list[str]:
    """Split comma separated words."""
    return [word.strip() for word in text.split(",") if word.strip()]


def seed_numbers(text: str) -> int | list[int]:
    """Parse `3` as a number of seeds and `0,5,7` as a list of seeds."""
    try:
        return [int(word) for word in words(text)] if "," in text else int(text)
    except ValueError:
        raise BadInput(f"--seeds takes a number or a list such as 0,1,2; got '{text}'") from None


def run_keywords(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the parameters of compare, sweep or reproduce to the keywords of the library function.

    `parameters` are the locals of the command; names it does not have are left out.
    """
    keywords = {name: parameters[name] for name in UNCHANGED if name in parameters}
    keywords |= {name: words(parameters[name]) for name in WORD_LISTS if name in parameters}
    if "column" in parameters:
        keywords["columns"] = pairs(parameters["column"])
    chosen = tuple(parameters[name] for name in ("engine", "jobs", "address", "cpus", "gpus"))
    engine = None if "budget" in parameters and chosen == ("local", None, None, None, None) else make_engine(*chosen)
    return keywords | {
        "seeds": seed_numbers(parameters["seeds"]), "cache": not parameters["no_cache"], "engine": engine,
    }  # fmt: skip


def comparison_json(result: Any) -> dict[str, Any]:
    """Return the JSON document that compare, sweep and reproduce share."""
    from holdfast.stats.engagement import engagement_table
    from holdfast.stats.labels import grouped

    return {
        "table": result.table(),
        "records": [{"id": record.id, **asdict(record)} for record in result.records],
        "report": str(result.report),
        "notes": list(result.notes),
        "engagement": engagement_table(grouped(result.records)),
    }


def parsed_settings(set_: list[str] | None, task: str | None = None) -> dict[str, Any]:
    """Return the settings of --set and --task."""
    from holdfast.train.settings import parse_settings

    return parse_settings(set_ or []) | ({} if task is None else {"task": task})


def merged_settings(
    context: typer.Context, config: Path | None, set_: list[str] | None, task: str | None
) -> dict[str, Any]:
    """Combine --config, --set and --task; options on the command line override the file."""

    settings = {} if config is None else read_config(config)
    for option in context.params:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            settings.pop("method" if option == "methods" else option, None)
            if option == "steps":
                settings.pop("every", None)  # the validation interval depends on the number of steps
    settings |= parsed_settings(set_, task)
    for name in STRING_SETTINGS:
        if name in settings and not isinstance(settings[name], str):
            raise BadInput(f"{name} must be a string; got {settings[name]!r}")
    return settings


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON object of settings."""
    try:
        settings = read_json(path, max_bytes=1 << 20)
    except Damaged as error:
        if not path.is_file():
            fix = "name a file that `holdfast sweep` wrote, or a JSON object of settings"
            raise BadInput(f"no file {path}: {fix}") from None
        raise BadInput(f'{error}: write a JSON object such as {{"lr": 0.001}}') from None
    if not isinstance(settings, dict):
        raise BadInput(f'{path} is not a JSON object: write one such as {{"lr": 0.001}}')
    return settings


class SingleUseCommand(TyperCommand):
    """A command that rejects an option given twice, unless the option is repeatable."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options: list[Any] = [parameter for parameter in self.params if parameter.param_type_name == "option"]
        by_flag = {flag: o for o in options if not o.multiple for flag in (*o.opts, *o.secondary_opts)}
        seen: set[str] = set()
        for word in args[: args.index("--")] if "--" in args else args:
            flag = word.partition("=")[0]
            if flag not in by_flag:
                continue
            option = by_flag[flag]
            if option.name in seen:
                is_list = "comma separated" in (option.help or "").lower()
                fix = "separate its values with commas" if is_list else "use it once"
                raise BadInput(f"{flag} was used twice and only one value would count: {fix}")
            seen.add(option.name)
        return super().parse_args(ctx, args)


def make_engine(
    engine: str, jobs: str | None, address: str | None, cpus: float | None, gpus: float | None
) -> RunEngine:
    """Build the engine the options name; options of the other engine are errors."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if processes.world_size() > 1 and (engine != "local" or jobs not in (None, "1")):
        raise BadInput(
            "torchrun processes share each run: remove --engine and --jobs, or start holdfast without torchrun for "
            "concurrent runs"
        )
    if engine == "local":
        from holdfast.engines.local import parse_jobs

        for name, value in (("address", address), ("cpus", cpus), ("gpus", gpus)):
            if value is not None:
                raise BadInput(f"--{name} needs --engine ray; use --jobs for concurrent runs on this machine")
        return parse_jobs(jobs or ("auto" if processes.world_size() == 1 else "1"))
    from holdfast.engines.ray import Ray

    if jobs is not None:
        raise BadInput("--jobs is for runs on this machine; with --engine ray use --cpus and --gpus per run")
    for name, value in (("cpus", cpus), ("gpus", gpus)):
        if value is not None and value < 0:
            raise BadInput(f"--{name} must be at least 0; got {value:g}")
    return Ray(address, 1.0 if cpus is None else cpus, gpus)
