"""From a request to jobs: build the specs, generate the episodes and check once that everything fits together.

`compare`, `fit`, `sweep`, `adapt`, `pretrain` and `reproduce` all go through `resolve`.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from holdfast import catalog
from holdfast.core.errors import BadInput, Damaged, unknown
from holdfast.defaults import AUTO, plan_note
from holdfast.record import read
from holdfast.spec import Spec
from holdfast.stats.labels import BASELINE
from holdfast.train.assemble import augmentation, try_build
from holdfast.train.jobs import Job
from holdfast.train.plan import Episode
from holdfast.train.settings import make_spec, min_domains, with_method, with_rates, with_slots
from holdfast.train.slate import baseline_specs, choose_methods, merge_identical, training_domains
from holdfast.train.training_data import DataOptions, scoring_notes
from holdfast.train.workspace import Workspace

MACHINE = ("precision", "processes")  # the same experiment on another machine differs in these
EXPERIMENT = ("data", "task")  # a comparison or a search may change every other setting
STEPS = ("steps", "batch", "lr", "every")
SHARED = ("method", "neck", "lr")  # groups whose settings go to those methods and networks that have them


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request of a command: methods x seeds x episodes of a plan, or complete specs; None means the default."""

    data: DataOptions | None = None  # if the command reads data
    methods: Sequence[str] = ("erm",)  # ("auto",): the default slate; ("all",): every method that fits
    seeds: Sequence[int] = (0,)
    encoder: str = "auto"
    tune: str = "auto"
    plan: str = "leave-one-out"
    select: str | None = None
    metric: str | None = None
    steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    every: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    specs: Sequence[Spec] = ()  # run these instead of what the fields above describe
    episode: Episode | None = None  # run this episode instead of those of the plan
    only: Container[str] | None = None  # names of the episodes to run
    baselines: bool = False  # add the simple baselines of the kind of example
    tested: bool = False  # the plan must test something
    continues: bool = False  # a trained network continues: test labels need not occur in the training rows
    model: Path | None = None  # folder that will hold the model; another experiment's model is never overwritten
    model_settings: Collection[str] | None = None  # settings in which an existing model must agree; None: all
    out: Path | None = None  # folder of records and report
    device: str = AUTO
    cache: bool = True  # features of frozen encoders
    analyse: Sequence[str] = ()  # analyses of every run
    combinations: bool = False  # of finished runs
    search_rate: bool | None = None  # try other learning rates; by default unless the request sets the rate

    @property
    def searches_rates(self) -> bool:
        """Whether other learning rates are tried."""
        fixed = self.lr is not None or "lr" in self.settings
        return not fixed if self.search_rate is None else self.search_rate


def method_names(methods: str | Sequence[str | type]) -> list[str]:
    """Return a list of names from a list or a comma-separated string; classes are registered as methods."""
    names = methods.split(",") if isinstance(methods, str) else methods
    names = [catalog.register_method(name) if isinstance(name, type) else name.strip() for name in names]
    return [name for name in names if name]


def seed_list(seeds: int | Sequence[int]) -> list[int]:
    """Return the seeds; a number means that many, from 0."""
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def single_run(method: str, seed: int, settings: Mapping[str, Any] | None, **fields: Any) -> Request:
    """Return a request for one method and seed; both may be overridden by the settings."""
    settings = dict(settings or {})
    methods, seeds = (settings.pop("method", method),), (settings.pop("seed", seed),)
    return Request(methods=methods, seeds=seeds, settings=settings, **fields)


def resolve(request: Request, workspace: Workspace) -> list[Job]:
    """Return one job per spec and episode; raise `BadInput` before any training if something does not fit.

    Methods that "all" leaves out, and a better default that is not installed, are listed in `workspace.notes`.
    """
    specs = request.specs or _specs(request, workspace)
    model, compared = request.model, request.model_settings
    if model is not None and (model / "config.json").is_file() and specs[0].plan != "stream":  # which saves no model
        names = [each.name for each in fields(Spec) if each.name not in MACHINE] if compared is None else compared
        check_records(model, [model / "record.json"], specs[0], names)
    kind, jobs = workspace.dataset.raw.kind, dict[str, Job]()
    configurations: dict[str, tuple[Job, Episode]] = {}
    for spec in specs:
        if request.episode is not None:
            workspace.set_episode(spec, request.episode)
        catalog.check_spec(spec, kind)
        augmentation(spec, kind)
        if spec.precision == "bf16" and workspace.device.type != "cuda":
            raise BadInput("precision bf16 needs a GPU: use fp32 on the CPU")
        for episode in workspace.episodes(spec):
            if request.only is not None and episode.name not in request.only:
                continue
            check_episode(spec, episode)
            job = Job.of(spec, episode)
            jobs[job.id] = job
            configurations.setdefault(str(replace(spec, seed=0)), (job, episode))
    for key, (job, episode) in (
        {} if request.continues else configurations.items()
    ):  # a trained network is built already
        if workspace.out is None or not (workspace.out / "records" / f"{job.id}.json").exists():
            try:
                try_build(job.spec, episode, workspace)
            except BadInput as error:
                if tuple(request.methods) != (AUTO,) or job.spec.method == BASELINE:
                    raise
                workspace.notes.append(f"{job.spec.method} left out: {error}")
                jobs = {id: each for id, each in jobs.items() if str(replace(each.spec, seed=0)) != key}
    return list(jobs.values())


def _specs(request: Request, workspace: Workspace) -> list[Spec]:
    """Return one spec per method and seed; method and neck settings go to the methods and necks that have them."""
    if not request.seeds or not request.methods:
        raise BadInput("nothing to run: give at least one seed and one method")
    shared: dict[str, dict[str, Any]] = {group: {} for group in SHARED}
    others: dict[str, Any] = {}
    for key, value in request.settings.items():
        group, dot, name = key.partition(".")
        if dot and group in SHARED:
            shared[group][name] = value
        else:
            others[key] = value
    values = {name: getattr(request, name) for name in ("encoder", "tune", "plan", "select", "metric", *STEPS)}
    base = make_spec(workspace.dataset, settings=others, device=workspace.device, **values)
    cpu = workspace.device.type == "cpu"
    note = catalog.default_note(workspace.dataset.raw.kind, others.get("encoder", request.encoder), base.task, cpu=cpu)
    folds = plan_note(len(workspace.dataset.domains)) if request.tested and request.plan == AUTO else ""
    hidden = scoring_notes(workspace.dataset, base.task, base.metric) if request.tested else []
    workspace.notes += [text for text in (note, folds, *hidden) if text]
    names = choose_methods(request.methods, base, workspace) if request.tested else request.methods
    specs = with_methods(base, names, method_args=shared["method"], neck_args=shared["neck"])
    specs = with_rates([with_slots(each, len(workspace.dataset)) for each in specs], shared["lr"])
    if request.tested:
        specs, workspace.identical = merge_identical(specs)
        same = workspace.identical.items()
        workspace.notes += [f"{name} is not run, because it is identical to {other} here" for name, other in same]
    simple = baseline_specs(base, workspace.dataset, request.seeds) if request.baselines else []
    return [*simple, *(replace(spec, seed=seed) for spec in specs for seed in request.seeds)]


def check_episode(spec: Spec, episode: Episode) -> None:
    """Raise unless an episode has enough training domains."""
    needed, per_step = min_domains(spec.method), spec.domains_per_step
    if 0 < per_step < needed:
        fix = f"use --set domains_per_step={needed} or more"
        raise BadInput(f"method {spec.method} needs {needed} training domains per step, got {per_step}: {fix}")
    count = training_domains([episode], spec.select)
    if count < needed:
        fix = "add domains, or use another method, --plan or --select"
        raise BadInput(f"method {spec.method} needs {needed} training domains, but {episode.title} has {count}: {fix}")


def with_methods(
    spec: Spec, names: Sequence[str], *, method_args: Mapping[str, Any], neck_args: Mapping[str, Any]
) -> list[Spec]:
    """Return one spec per method; each setting goes to the methods or necks that have it, at least one of them."""
    methods = [name.rpartition("+")[2] for name in names]
    options = _distribute("method", methods, method_args)
    specs = [with_method(replace(spec, method_args=args), name) for name, args in zip(names, options, strict=True)]
    options = _distribute("neck", [each.neck for each in specs], neck_args)
    return [replace(each, neck_args={**each.neck_args, **args}) for each, args in zip(specs, options, strict=True)]


def _distribute(group: str, names: Sequence[str], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings that each named part, or a part it wraps, has; raise for a setting that none has."""
    section = f"{group}s"
    known = [{key for _, entry in catalog.unwrap(section, name) for key in entry.setting_names()} for name in names]
    for key in settings:
        if not any(key in keys for keys in known):
            if not any(known):
                raise catalog.no_settings_error(section, "' and '".join(dict.fromkeys(names)), key)
            raise unknown(f"setting of a {group}", key, sorted(set().union(*known)))
    return [{key: value for key, value in settings.items() if key in keys} for keys in known]


def check_records(folder: Path, records: Iterable[Path], spec: Spec, names: Iterable[str]) -> None:
    """Raise if a record in a folder differs from the spec in one of these settings; damaged records are ignored."""
    wanted = spec.json()
    for path in records:
        try:
            existing = read(path).spec
        except Damaged:
            continue
        if any(existing.get(name) != wanted.get(name) for name in names):
            other = f"{existing['method']} on {existing['data']}, {existing['steps']} steps"
            fix = "choose another folder with --out, or delete it"
            raise BadInput(f"{folder} belongs to another experiment ({other}): {fix}")
