"""Options shared by several commands, and how their values are parsed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from holdfast.cli.console import started
from holdfast.core import processes
from holdfast.core.errors import BadInput, Damaged, unknown
from holdfast.core.files import read_json

if TYPE_CHECKING:
    from holdfast.train.run import Engine as RunEngine

ENGINES = ("local", "ray")
STRING_SETTINGS = (
    "method", "task", "encoder", "tune", "neck", "head", "metric", "plan", "select", "optimizer", "schedule",
)  # fmt: skip

MODEL = ("encoder", "tune", "plan", "select", "metric", "steps", "batch", "lr")  # in the order of the help
ENGINE = ("engine", "jobs", "address", "cpus", "gpus")


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
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Task = Annotated[str | None, option("Task; see `holdfast list tasks`. [default: classify]")]
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
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Leave rows of a table with bad cells out and count them: missing labels, domains or texts, values that "
        "are no numbers, incomplete rows. Without it they are one error.",
    ),
]
DataDir = Annotated[Path | None, option("Folder with the files of known data sets; see `holdfast list datasets`.")]
Model = Annotated[Path, argument("A model folder that `holdfast fit` wrote.")]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the commands that train; `takes` lists those of a command."""

    methods: Annotated[
        str,
        typer.Option(
            help="Comma separated methods; auto: erm, its moving average, one per family, and the systems that fit; "
            "all: every method that fits; see `holdfast list methods`."
        ),
    ] = "auto"
    task: Task = None
    seeds: Annotated[str, typer.Option(help="Number of seeds, or a list of seeds: 3, or 0,5,7.")] = "3"
    encoder: Annotated[
        str, typer.Option(help="Encoder that turns examples into features; see `holdfast list encoders`.")
    ] = "auto"
    tune: Annotated[
        str,
        typer.Option(
            help="Encoder parameters to train: frozen, full, lp-ft (head on frozen features, then full), lora:R "
            "(adapters of rank R, needs the package peft), last:N, head+cls; auto tunes pretrained encoders on a GPU "
            "only."
        ),
    ] = "auto"
    plan: Annotated[
        str,
        typer.Option(
            help="Evaluation protocol; see `holdfast list protocols`. auto is leave-one-out for up to 8 domains, and "
            "leave-groups-out for more."
        ),
    ] = "auto"
    select: Annotated[str, typer.Option(help="Model selection; see `holdfast list selections`.")] = "train-validation"
    metric: Annotated[
        str | None,
        option(
            "Metric for model selection and tables: accuracy, macro_f1, micro_f1, balanced_accuracy, mcc, roc_auc, "
            "nll, ece; for responses nll, perplexity, bleu2, w2v_similarity, distinct2; for tags entity_f1, "
            "entity_precision, entity_recall, accuracy, nll; for answer spans answer_f1, exact_match, nll. [default: "
            "the first of the task]"
        ),
    ] = None
    steps: Annotated[
        int | None,
        option(
            "Training steps per run, and per phase of a two-phase method. [default: 300; if the encoder is trained, 8 "
            "passes over the data, 300 to 3000 steps, with early stopping]"
        ),
    ] = None
    batch: Annotated[
        int | None, option("Examples per domain in a batch; under torchrun, per process. [default: 32]")
    ] = None
    lr: Annotated[float | None, option("Learning rate. [default: by encoder and tuning]", "--lr")] = None
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0
    out: Annotated[Path, typer.Option(help="Folder for records, checkpoints and report.html.")] = Path("runs")
    device: Device = "auto"
    examples: Annotated[int | None, option("Use at most this number of examples per domain, sampled by seed.")] = None
    column: Column = None
    skip_bad: SkipBad = False
    unlabelled: Annotated[
        str | None,
        option(
            "Examples without labels from the domain that the model will be used on, in the form of DATA. coral, mmd "
            "and dann align their features, and fit corrects a change of the class mix. A domain column is optional."
        ),
    ] = None
    empty_labels: Annotated[
        str,
        typer.Option(
            help="Rows of DATA with an empty label: error, or unlabelled to use them as --unlabelled examples."
        ),
    ] = "error"
    set_: Set = None
    config: Annotated[
        Path | None,
        option(
            "JSON file of settings as in --set, plus method, encoder and tune; command-line options take precedence."
        ),
    ] = None
    analyse: Annotated[
        str, option("Comma separated analyses of each trained run, or all; see `holdfast list analyses`.")
    ] = ""
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not cache features of a frozen encoder.")] = False
    data_dir: DataDir = None
    log: Annotated[
        str | None,
        option(
            "Also log losses and validation scores to tensorboard, tensorboard:DIR, mlflow:URI, wandb or wandb:PROJECT."
        ),
    ] = None
    engine: Annotated[
        str, typer.Option(help="Where runs execute: local, or ray for a cluster (needs the package ray).")
    ] = "local"
    jobs: Annotated[
        str | None,
        option(
            "Concurrent runs on this machine, each with its share of the cores; auto is one per core for small runs, "
            "and one at a time for others; on a GPU, it is the number that fits the memory, measured during the first "
            "run. [default: auto]"
        ),
    ] = None
    address: Annotated[
        str | None,
        option(
            "With --engine ray: address of a cluster such as head:6379, or auto. [default: a temporary local cluster]"
        ),
    ] = None
    cpus: Annotated[float | None, option("With --engine ray: CPUs per run. [default: 1]")] = None
    gpus: Annotated[
        float | None,
        option("With --engine ray: GPUs per run, or a fraction such as 0.25. [default: 1 on a GPU, else 0]"),
    ] = None
    budget: Annotated[
        str | None,
        option(
            "Time limit such as 90s, 10m or 1h, in which runs are worked off in order of value; none runs everything. "
            "The same command continues. [default: 5m]"
        ),
    ] = None
    search_rate: Annotated[
        bool | None,
        option(
            "Also try a third and three times the default learning rate, of plain training and of the leading methods, "
            "chosen on source domains. [default: for encoders that learn, unless --lr is set]",
            "--search-rate/--no-search-rate",
        ),
    ] = None
    json: Json = False

    def some(self, *names: str) -> dict[str, Any]:
        """Return some options by name, for functions of the library that have the same keywords."""
        return {name: getattr(self, name) for name in names}

    @property
    def columns(self) -> dict[str, str]:
        """Roles of columns by name."""
        return pairs(self.column)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of --set and --task."""
        from holdfast.train.settings import parse_settings

        return parse_settings(self.set_ or ()) | ({} if self.task is None else {"task": self.task})

    def merged_settings(self, context: typer.Context) -> dict[str, Any]:
        """Combine --config, --set and --task; options on the command line override the file."""
        settings = {} if self.config is None else read_config(self.config)
        for option in context.params:
            source = context.get_parameter_source(option)
            if source is not None and source.name == "COMMANDLINE":
                settings.pop("method" if option == "methods" else option, None)
                if option == "steps":
                    settings.pop("every", None)  # the validation interval depends on the number of steps
        settings |= self.settings
        for name in STRING_SETTINGS:
            if name in settings and not isinstance(settings[name], str):
                raise BadInput(f"{name} must be a string; got {settings[name]!r}")
        return settings

    def keywords(self) -> dict[str, Any]:
        """Return the keywords that `compare` and `sweep` of the library share."""
        chosen = self.some(*ENGINE)
        is_default = chosen == {**dict.fromkeys(ENGINE), "engine": "local"}
        return self.some(*MODEL, "out", "device", "examples", "data_dir", "skip_bad", "budget") | {
            "columns": self.columns, "methods": words(self.methods), "seeds": seed_numbers(self.seeds),
            "cache": not self.no_cache, "engine": None if is_default else make_engine(**chosen), "started": started(),
        }  # fmt: skip


def takes(*names: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options, in the order of its help: its own parameters, and fields of `Options`.

    The command receives the fields as its parameter `run`; `defaults` replace theirs.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters
        shared = [name for name in names if name not in own]
        hints = get_type_hints(Options, include_extras=True) | {name: each.annotation for name, each in own.items()}
        known = {each.name: each.default for each in fields(Options)} | defaults
        known |= {name: each.default for name, each in own.items()}

        @wraps(function)
        def command(**values: Any) -> None:
            function(run=Options(**{name: values.pop(name) for name in shared}), **values)

        # typer reads the options of a command from its signature and annotations
        parameters = [Parameter(n, Parameter.KEYWORD_ONLY, default=known[n], annotation=hints[n]) for n in names]
        vars(command).update(__signature__=inspect.Signature(parameters))
        command.__annotations__ = {name: hints[name] for name in names}
        return command

    return decorate


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


def comparison_json(result: Any) -> dict[str, Any]:
    """Return the JSON document that compare, sweep and reproduce share."""
    from holdfast.stats.engagement import engagement_table
    from holdfast.stats.labels import grouped

    return {
        "table": result.table(),
        "records": [{"id": record.id, **asdict(record)} for record in result.records],
        "report": result.report,
        "notes": result.notes,
        "engagement": engagement_table(grouped(result.records)),
    }


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
        from holdfast.engines.work import parse_jobs

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
