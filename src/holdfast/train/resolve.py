"""From a request to jobs: build the specs, generate the episodes and check once that everything fits together.

`compare`, `fit`, `sweep`, `adapt`, `pretrain` and `reproduce` all go through `resolve`. The default slate of methods
has ERM and its moving average, one method per family (the one with the best published average on DomainBed), and the
systems with a memory or experts, each where it fits the data, the encoder and the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from holdfast import catalog
from holdfast.catalog.encoders import GENERAL, SIMPLE_ENCODER
from holdfast.catalog.entry import MethodEntry
from holdfast.catalog.methods import DEFAULT_SLATE
from holdfast.catalog.rates import default_rates
from holdfast.core.errors import BadInput, Damaged, unknown
from holdfast.data.dataset import Dataset
from holdfast.defaults import AUTO, plan_note
from holdfast.record import read
from holdfast.spec import Spec
from holdfast.stats.labels import BASELINE, CONSTANT, SIMPLE
from holdfast.train.assemble import augmentation, try_build
from holdfast.train.fit import source_folds
from holdfast.train.plan import Episode
from holdfast.train.progress import ProgressListener
from holdfast.train.run import Engine, Job
from holdfast.train.settings import (
    make_spec,
    min_domains,
    required_necks,
    spec_settings,
    with_general_model,
    with_method,
    with_rates,
    with_slots,
)
from holdfast.train.training_data import DataOptions, scoring_notes
from holdfast.train.workspace import Workspace

MACHINE = ("precision", "processes")  # the same experiment on another machine differs in these
EXPERIMENT = ("data", "task")  # a comparison or a search may change every other setting
STEPS = ("steps", "batch", "lr", "every")
SHARED = ("method", "neck", "lr")  # groups whose settings go to those methods and networks that have them


@dataclass(kw_only=True, eq=False)
class Training:
    """How networks are trained; None and `auto` mean the default for the data."""

    encoder: str = AUTO
    tune: str = AUTO
    metric: str | None = None
    steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    device: str = AUTO
    cache: bool = True  # features of frozen encoders
    settings: Mapping[str, Any] | None = None  # fields of a Spec, or dotted names such as `encoder.length`


@dataclass(kw_only=True, eq=False)
class Configuration(Training):
    """One method, and how its model is trained on all domains."""

    method: str = "erm"
    seed: int = 0
    keep_sample: int = 0  # examples per domain that a model folder stores for `adapt`
    left_out: bool = False  # also train with each domain left out, to calibrate predictions for unseen domains

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any], *, without: Collection[str] = (), **options: Any) -> Self:
        """Return the configuration of a record's spec, without some of its settings."""
        names = ("method", "encoder", "tune", "steps", "batch", "lr", "metric", "seed")
        settings = {key: value for key, value in spec_settings(spec).items() if key not in without}
        return cls(**{name: spec[name] for name in names}, settings=settings, **options)


@dataclass(kw_only=True, eq=False)
class ManyRuns(DataOptions, Training):
    """Options of commands that train many runs: methods x seeds x episodes of a plan."""

    methods: str | Sequence[str | type] = (AUTO,)  # the default slate; `all`, or names and subclasses of Method
    seeds: int | Sequence[int] = 3  # number of seeds, or the seeds
    out: str | Path = "runs"
    plan: str = AUTO
    select: str = "train-validation"
    watch: ProgressListener | None = None
    engine: Engine | None = None
    budget: str | None = None  # such as `90s`, `2m` or `1h`, by default `defaults.LIMIT`; `none`: no limit
    started: float | None = None  # value of `time.monotonic` from which the budget is counted


@dataclass(kw_only=True, eq=False)
class Request(Training):
    """Request of a command: methods x seeds x episodes of a plan, or complete specs."""

    methods: Sequence[str] = ("erm",)  # ("auto",): the default slate; ("all",): every method that fits
    seeds: Sequence[int] = (0,)
    plan: str = "leave-one-out"
    select: str | None = None
    every: int | None = None
    specs: Sequence[Spec] = ()  # run these instead of what the fields above describe
    episode: Episode | None = None  # run this episode instead of those of the plan
    only: Container[str] | None = None  # names of the episodes to run
    baselines: bool = False  # add the simple baselines of the kind of example
    tested: bool = False  # the plan must test something
    continues: bool = False  # a trained network continues: test labels need not occur in the training rows
    model: Path | None = None  # folder that will hold the model; another experiment's model is never overwritten
    model_settings: Collection[str] | None = None  # settings in which an existing model must agree; None: all


def method_names(methods: str | Sequence[str | type]) -> list[str]:
    """Return a list of names from a list or a comma-separated string; classes are registered as methods."""
    names = methods.split(",") if isinstance(methods, str) else methods
    names = [catalog.register_method(name) if isinstance(name, type) else name.strip() for name in names]
    return [name for name in names if name]


def seed_list(seeds: int | Sequence[int]) -> list[int]:
    """Return the seeds; a number means that many, from 0."""
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def searches_rates(options: Training, search_rate: bool | None) -> bool:
    """Whether other learning rates are tried; by default unless the user sets the rate."""
    fixed = options.lr is not None or "lr" in (options.settings or {})
    return not fixed if search_rate is None else search_rate


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
    for key, value in (request.settings or {}).items():
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


ALL = "all"
WRAPPERS = {"moving": "moving-average", "swad": "swad"}  # methods that do what `average` does
ADAPTING = ("coral", "dann")  # added to the slate if there are unlabelled examples; a frozen encoder needs a projection
PLAIN_NECKS = ("none", "projection")  # a system of the slate replaces them by its own neck
TRANSFORMERS = ("minilm", "mpnet", "hf:", "vit")  # prefixes of encoders that can contain experts
TABLES = ("table", "mixed")  # kinds that trees are usually good at
FEW_COLUMNS = 50  # of a table of numbers only, whose kind is `vector`
LIGHT = {"words": 1, "characters": 0, "min_df": 1, "features": 1000}  # of the text encoder of a constant prediction


def training_domains(episodes: Iterable[Episode], select: str, per_step: int = 0) -> int:
    """Return the smallest number of domains that any step trains on, folds of the selection included.

    `per_step` is the most that a step has, or 0.
    """
    has_folds = catalog.lookup("selections", select).load().scored_on == "folds"
    stages = [stage for episode in episodes for stage in episode.stages]
    held_out = [max(map(len, source_folds(stage.train))) if has_folds else 0 for stage in stages]
    fewest = min(len(stage.train) - count for stage, count in zip(stages, held_out, strict=True))
    return min(fewest, per_step or fewest)


def choose_methods(names: Iterable[str], spec: Spec, workspace: Workspace) -> list[str]:
    """Return the methods to compare, `auto` and `all` resolved; notes name those of them that are left out."""
    episodes = workspace.episodes(spec)
    if not any(stage.test for episode in episodes for stage in episode.stages):
        fix = "use another, such as --plan leave-one-out, or train a model with `holdfast fit`"
        raise BadInput(f"the plan {spec.plan} tests nothing, so there is nothing to compare: {fix}")
    names = list(dict.fromkeys(names))
    domains = training_domains(episodes, spec.select, spec.domains_per_step)
    if names == [AUTO]:
        slate = [_with_own_neck(name, spec) for name in DEFAULT_SLATE]
        if workspace.dataset.unlabelled:
            frozen = spec.tune == "frozen" and spec.neck == "none"
            slate += [
                name for name in (f"projection+{each}" if frozen else each for each in ADAPTING) if name not in slate
            ]
        fitting = [name for name in slate if not exclusion_reason(name, spec, domains)]
        workspace.notes.append(f"default methods: {', '.join(fitting)} (--methods all compares every method)")
        return fitting
    if names != [ALL]:
        return names
    trained = [each for each in catalog.buildable_names("methods") if not catalog.inner_method(each).full_batch]
    reasons = {name: exclusion_reason(name, spec, domains) for name in trained}
    workspace.notes += [f"{name} left out: {reason}" for name, reason in reasons.items() if reason]
    return [name for name, reason in reasons.items() if not reason]


def _with_own_neck(name: str, spec: Spec) -> str:
    """Name the neck of a method that needs one if the others have a projection."""
    necks = () if "+" in name else required_necks(name, spec)
    return f"{necks[0]}+{name}" if necks and spec.neck == "projection" else name


def exclusion_reason(name: str, spec: Spec, domains: int) -> str:
    """Return why a method cannot be trained here or would be equal to another one, or an empty string."""
    neck, plus, name = name.rpartition("+")
    if neck == GENERAL:
        if reason := _general_reason(spec):
            return reason
        spec = with_general_model(spec)
    elif plus:
        if reason := _neck_reason(neck, spec):
            return reason
        spec = replace(spec, neck=neck, neck_args={})
    entries = [entry for _, entry in catalog.unwrap("methods", name)]
    if reason := next((reason for entry in entries if (reason := entry.unsupported(spec.task))), ""):
        return reason
    if reason := catalog.incompatibility(name, spec.encoder):
        return reason
    if min_domains(name) > domains:
        have = f"a step has {domains}" if domains == spec.domains_per_step else f"the data has {domains}"
        return f"it needs {min_domains(name)} training domains, {have}"
    necks = required_necks(name, spec)
    if necks and spec.neck not in ("none", *necks):
        return f"it needs a neck such as {necks[0]}, not {spec.neck}"
    if WRAPPERS.get(spec.average) == catalog.unwrap("methods", name)[0][0]:
        return f"the weights of every method are averaged already (average={spec.average})"
    for entry in entries:
        if entry.acts_on == "stream" and spec.plan != "stream":
            return "it differs from erm only on a stream (--plan stream)"
        if entry.acts_on and entry.acts_on != "stream" and _is_fixed(entry.acts_on, spec):
            trainable = "" if entry.acts_on == "backbone" else " or --set neck=projection"
            same = f", so that it equals {entry.equals}" if entry.equals else ""
            return f"it changes the {entry.acts_on}, which a frozen encoder keeps fixed{same} (--tune full{trainable})"
    return ""


def _neck_reason(neck: str, spec: Spec) -> str:
    """Return why a neck of the default slate does not fit, or an empty string."""
    if spec.neck not in PLAIN_NECKS:
        return f"the neck is {spec.neck}"
    if reason := catalog.lookup("necks", neck).unsupported(spec.task):
        return f"{neck}: {reason}"
    if neck == "experts" and (spec.tune == "frozen" or not spec.encoder.startswith(TRANSFORMERS)):
        return "experts need a transformer that learns"
    return ""


def _general_reason(spec: Spec) -> str:
    """Return why the encoder cannot read a general model, or an empty string."""
    if spec.tune == "frozen":
        return "a general memory needs an encoder that learns"
    try:
        with_general_model(spec)
    except BadInput as error:
        return str(error)
    return ""


def _is_fixed(part: str, spec: Spec) -> bool:
    """Whether features or backbone, on which a method acts, do not change in training."""
    return spec.tune == "frozen" and (part == "backbone" or spec.neck == "none")


def identical_to(spec: Spec) -> Spec:
    """Return the simplest spec that trains the same weights, by the rules of the catalog; the spec itself if none is.

    A method equals another one if what it acts on is not trained, or if settings switch off what distinguishes it.
    """
    name, entry = catalog.unwrap("methods", spec.method)[-1]
    if not isinstance(entry, MethodEntry) or not entry.equals:
        return spec
    fixed = bool(entry.acts_on) and (
        spec.plan != "stream" if entry.acts_on == "stream" else _is_fixed(entry.acts_on, spec)
    )
    chosen = _effective(entry, spec.method_args)
    off = bool(entry.off) and all(chosen.get(key) == value for key, value in entry.off.items())
    if not fixed and not off:
        return spec
    method, other = spec.method.replace(name, entry.equals), catalog.lookup("methods", entry.equals)
    known = {key for _, part in catalog.unwrap("methods", method) for key in part.setting_names()}
    args = {key: value for key, value in spec.method_args.items() if key in known}
    shared = _effective(other, {key: value for key, value in args.items() if key in other.setting_names()})
    if any(shared[key] != chosen.get(key) for key in other.preset):
        return spec  # both have the setting, with different values
    equal = with_method(replace(spec, method_args=args), method)
    rates = {part: factor for part, factor in spec.lr_args.items() if part in default_rates(equal)}
    return identical_to(replace(equal, lr_args=rates))


def _effective(entry: MethodEntry, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a method: its defaults, and what the entry or the user changed."""
    defaults = {each.name: each.default for each in fields(entry.load().Settings)}
    return {**defaults, **entry.preset, **entry.fixed, **args}


def merge_identical(specs: Sequence[Spec]) -> tuple[list[Spec], dict[str, str]]:
    """Return the specs to run, and method -> identical method for those that would repeat another one of them."""
    numbers = {str(spec): spec for spec in specs}
    chosen: dict[str, Spec] = {}
    same: dict[str, str] = {}
    for spec in sorted(specs, key=lambda each: str(identical_to(each)) != str(each)):  # the simplest first
        first = chosen.setdefault(str(identical_to(spec)), spec)
        if first is not spec and str(first) != str(spec):
            same[spec.method] = first.method
    run = {str(spec) for spec in chosen.values()}
    return [spec for key, spec in numbers.items() if key in run], same


def baseline_specs(base: Spec, dataset: Dataset, seeds: Sequence[int]) -> list[Spec]:
    """Return the specs of the baselines for the spec of a comparison; none for streams and other tasks."""
    kind = dataset.raw.kind
    fitting = [name for name in SIMPLE if not catalog.lookup("methods", name).unsupported(base.task)]
    constant = next((name for name in fitting if name in CONSTANT), None)
    trees = [name for name in fitting if catalog.lookup("methods", name).head]
    regressions = [name for name in fitting if name not in (*CONSTANT, *trees)]
    if constant is None or base.plan == "stream":
        return []
    plain = replace(base, neck="none", neck_args={}, head="linear", head_args={}, method_args={})
    plain = replace(plain, predict=Spec.predict, predict_args={})
    simple = replace(plain, encoder=SIMPLE_ENCODER[kind], encoder_args={})
    entry = catalog.lookup("encoders", base.encoder)
    useful = entry.pretrained or entry.tune == "frozen" or bool(base.encoder_args.get("weights"))
    frozen = [plain] if useful and "template" not in base.encoder_args else []
    first, *others = [*frozen, simple]
    counts = LIGHT if kind == "text" else {}
    specs = [with_method(replace(simple, encoder_args=counts), constant)]  # nothing large is loaded or counted for it
    specs += [with_method(each, name) for name in regressions for each in (first, *others)]
    if trees and (kind in TABLES or (kind == "vector" and 0 < len(dataset.columns or ()) <= FEW_COLUMNS)):
        specs.append(with_method(simple, trees[0]))
    return [replace(spec, seed=seed) for spec in with_rates(specs, {}) for seed in seeds]
