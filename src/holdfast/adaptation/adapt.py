"""Adapt a trained model to one more domain; it is accepted only if the earlier domains lose little."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast import catalog
from holdfast.catalog.entry import TOKEN_TASKS
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import locked
from holdfast.core.stopping import Deadline, TimeUp, format_seconds, parse_duration, until
from holdfast.data.align import one_domain, with_classes, with_labels, without_held_out
from holdfast.data.dataset import Dataset, concatenated, join
from holdfast.data.readers.in_memory import Source
from holdfast.data.sample import draw_sample
from holdfast.data.splits import TEST, TRAIN, DomainRows, HeldOut, Part, split_parts
from holdfast.folders.format import Member, SavedModel, check_model, load_model
from holdfast.folders.versions import (
    Ledger,
    Version,
    add_version,
    read_ledger,
    repeated_note,
    repeated_version,
    request_digest,
)
from holdfast.nn.growth import GrowsWords, growable_memories
from holdfast.nn.model import Model
from holdfast.record import RunRecord, read
from holdfast.spec import Spec
from holdfast.stats.formatting import UNITS
from holdfast.train.assemble import Assembly
from holdfast.train.plan import Episode, PastStages, Stage
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Request, resolve, single_run
from holdfast.train.resume import Saver, stop_at_signal
from holdfast.train.run import train
from holdfast.train.settings import spec_settings
from holdfast.train.workspace import Workspace, choose_device
from holdfast.uncertainty.calibration import fit_calibration

LWF = catalog.lookup("methods", "lwf")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Settings of an adaptation, and how much the earlier domains may lose; None means as the model was fitted."""

    method: str = "auto"
    max_forgetting: float = 5.0  # points of the metric, or percent of an error in units, per earlier domain
    force: bool = False  # accept the model even if it forgot more, or if forgetting cannot be measured
    steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    metric: str | None = None
    seed: int = 0
    device: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.max_forgetting >= 0:
            raise BadInput(f"--max-forgetting must be a number of points, at least 0; got {self.max_forgetting}")


@dataclass(frozen=True)
class Adaptation:
    """Result of an adaptation: the model, scores per domain before and after, and forgetting in points."""

    model: SavedModel
    domain: str
    metric: str
    before: dict[str, float | None] = field(default_factory=dict)
    after: dict[str, float | None] = field(default_factory=dict)
    forgetting: dict[str, float] = field(default_factory=dict)  # per earlier domain; negative if it improved
    examples: dict[str, int] = field(default_factory=dict)  # number of held-out examples per domain
    refused: str = ""  # why the model is not accepted; empty if it is
    notes: tuple[str, ...] = ()
    version: int | None = None  # number of the saved version in its folder


def adapt(
    model: str | Path, data: Source, terms: Terms | None = None, *, domain: str | None = None,
    earlier: Sequence[Source] = (), columns: Mapping[str, str] | None = None, watch: ProgressListener | None = None,
    skip_bad: bool = False, budget: str | None = None, started: float | None = None,
) -> Adaptation:  # fmt: skip
    """Adapt a model folder; an accepted model becomes the next version of the folder.

    With `skip_bad`, rows of tables with bad cells are left out. After a `budget` such as `90s`, counted from `started`,
    the training stops with an error and a checkpoint, from which the same call continues.
    """
    deadline = Deadline(math.inf if budget is None else parse_duration(budget), started=started)
    folder, terms = Path(model), terms or Terms()
    saved = load_model(folder)
    task = saved.build_task()
    need = tuple(role for role in task.needs if role != "domain")
    new, *past = (
        saved.read(source, columns=columns, need=need, form=task.data_form, skip_bad=skip_bad)
        for source in (data, *earlier)
    )

    def trained(parent: int) -> Adaptation:
        try:
            with until(deadline):
                return adapt_model(
                    saved, new, terms, domain=domain, earlier=past, parent=parent, folder=folder, watch=watch
                )
        except TimeUp:
            raise BadInput(
                f"the training did not end within {format_seconds(deadline.seconds)}: the same command with a larger "
                "--budget continues, or use fewer --steps"
            ) from None

    def repeated() -> Adaptation:
        stage = saved.record.stages[-1]
        unmeasured = sorted(set(saved.domains) - {*stage["train"], *stage["test"]})
        return _result(saved, Spec(**saved.record.spec), terms.max_forgetting, unmeasured, ())

    inputs = [*request_inputs("adapt", new, past, terms), domain]
    return add_adapted(folder, inputs, trained, repeated, force=terms.force)


def request_inputs(command: str, new: Dataset, earlier: Sequence[Dataset], terms: Terms) -> list[Any]:
    """Return everything that the result of an adaptation depends on, except for the version it starts from."""
    return [command, new.name, new.fingerprint, [each.fingerprint for each in earlier], asdict(terms)]


def add_adapted(
    folder: Path, inputs: Sequence[Any], adapted: Callable[[int], Adaptation], repeated: Callable[[], Adaptation], *,
    force: bool, **about: Any,
) -> Adaptation:  # fmt: skip
    """Add the model that `adapted` returns for the present version, if it is accepted, as the next version.

    If a command with these inputs created the present version, the result is `repeated`; `about` describes the version.
    """
    with locked(folder):
        ledger = ledger_of(folder)
        if version := repeated_version(ledger, inputs):
            return replace(repeated(), version=version.number, notes=(repeated_note(version),))
        result = adapted(ledger.current)
        if result.refused and not force:
            return result
        about |= {"request": request_digest(ledger, ledger.current, inputs)}
        described = replace(version_of(result.model.record, forced=bool(result.refused)), **about)
        version = add_version(folder, ledger, described, lambda draft: result.model.save(draft, name=folder.name))
        return replace(result, version=version.number)


def adapt_model(
    saved: SavedModel, new: Dataset, terms: Terms, *, domain: str | None = None, earlier: Sequence[Dataset] = (),
    parent: int = 1, folder: Path | None = None, watch: ProgressListener | None = None,
) -> Adaptation:  # fmt: skip
    """Train a copy of a model on one more domain; the model itself does not change.

    Every member of an average is adapted, with the method `auto`; it is refused if one of them forgets too much.
    """
    adapted = partial(_adapt_network, new=new, domain=domain, earlier=earlier, parent=parent, watch=watch)
    result = adapted(replace(saved, members=()), terms=terms, folder=folder)
    own = replace(terms, method="auto", steps=None, lr=None, settings={})
    others = [(weight, adapted(member, terms=own)) for weight, member in saved.members]
    model = replace(result.model, members=tuple(Member(weight, other.model) for weight, other in others))
    refused = (each.refused for each in (result, *(other for _, other in others)))
    return replace(result, model=model, refused=next(filter(None, refused), ""))


def _adapt_network(
    saved: SavedModel, new: Dataset, terms: Terms, domain: str | None, earlier: Sequence[Dataset],
    parent: int, watch: ProgressListener | None, folder: Path | None = None,
) -> Adaptation:  # fmt: skip
    if saved.task in TOKEN_TASKS:
        others = ", ".join(name for name in catalog.buildable_names("tasks") if name not in TOKEN_TASKS)
        fix = f"only models for {others} can, so fit a new model"
        raise BadInput(f"models for the task {saved.task} cannot be adapted: {fix}")
    if new.raw.kind != saved.encoder.takes:
        raise BadInput(f"this model reads {saved.encoder.takes} data but the data set contains {new.raw.kind} data")
    new = one_domain(with_targets(new, saved), domain, saved.domains)
    new, dropped = without_held_out(new, saved.held_out)
    notes = list(new.notes)
    if dropped:
        notes.append(f"{dropped} examples are held-out examples of earlier domains and were not used")
    past = past_data(saved, earlier)
    dataset = new if past is None else join([past, new])
    trained, held_out = ((), ()) if past is None else (split_parts(past, TRAIN), split_parts(past, TEST))
    unmeasured = sorted(set(saved.domains) - {part.domain for part in held_out})
    if unmeasured and not terms.force:
        names, force = ", ".join(unmeasured), "or accept unknown forgetting with --force"
        if earlier:
            fix = f"pass the files that the model was fitted on, unchanged, {force}"
            raise BadInput(f"--earlier contains none of the held-out examples of {names}: {fix}")
        fix = f"pass the earlier data with --earlier FILE, fit with --keep-sample, {force}"
        raise BadInput(f"forgetting of {names} cannot be measured without examples: {fix}")
    watch = watch or ProgressListener()
    workspace = Workspace(dataset, choose_device(terms.device), on_encoding=watch.encoding)
    before = str(saved.record.spec["method"])
    name = (
        before if terms.method == "auto" and catalog.inner_method(before).full_batch else terms.method
    )  # a refit on all domains
    method, options = choose_method(name, saved.model, saved.task, examples=bool(trained))
    request = _request(Spec(**saved.record.spec), method, terms, {**options, **terms.settings}, workspace.device)
    start, (seed,) = len(dataset) - len(new), request.seeds
    learn, valid = DomainRows.of(new, new.domains[0], np.arange(len(new)), start=start).train_valid(0.2, seed)
    episode = Episode(f"{parent}>{learn.domain}", (Stage((learn,), (valid,), held_out),))
    (job,) = resolve(replace(request, episode=episode), workspace)
    spec = job.spec
    if spec.neck != (neck := saved.record.spec["neck"]):
        fix = "use another method, such as lwf or replay"
        raise BadInput(f"method {method} needs a neck such as {spec.neck}, but this model has the neck {neck}: {fix}")
    saver = Saver(None if folder is None else folder / "checkpoints" / f"{job.id}.safetensors")
    watch.start(1, 0)
    watch.begin(f"{spec.method} on {learn.domain}", job.steps)
    with stop_at_signal():
        record, assembly = train(
            spec, episode, workspace, saver=saver, tick=watch.step,
            trained=saved.model, past=PastStages(len(saved.record.stages), trained),
        )  # fmt: skip
    watch.end(record)
    saver.finish()
    trained = () if unmeasured else trained
    model = _adapted_model(saved, assembly, record, dataset, new, episode.stages[0], PastStages(start, trained), spec)
    if model.calibration is None and saved.calibration is not None:
        notes.append("calibration and foreign scores are dropped, because they need examples of the earlier domains")
    return _result(model, spec, terms.max_forgetting, unmeasured, tuple(notes))


def past_data(saved: SavedModel, earlier: Sequence[Dataset]) -> Dataset | None:
    """Return examples of the earlier domains, marked train and test: the given data, or the stored sample."""
    if not earlier:
        return None if saved.sample is None else saved.sample.dataset
    if saved.held_out is None:
        raise BadInput("this model folder does not list its held-out examples: fit the model again")
    marked = [saved.held_out.mark(with_targets(dataset, saved)) for dataset in earlier]
    marked = [dataset for dataset in marked if len(dataset)]
    return concatenated(marked) if marked else None


def with_targets(dataset: Dataset, saved: SavedModel) -> Dataset:
    """Return a data set with the targets of a model: indices of its classes, numbers, or sets of its labels."""
    if saved.predicts in ("", "classes"):
        return with_classes(dataset, saved.classes)
    converted: Dataset = saved.build_task().convert(dataset)
    missing = np.flatnonzero(converted.y < 0)
    if len(missing):
        raise BadInput(f"{dataset.name}: row {missing[0] + 1} has no label: fill it in or remove the row")
    return with_labels(converted, saved.classes) if saved.predicts == "labels" else converted


def _adapted_model(
    saved: SavedModel, assembly: Assembly, record: RunRecord, dataset: Dataset, new: Dataset, stage: Stage,
    past: PastStages, spec: Spec,
) -> SavedModel:  # fmt: skip
    """Return the new model with everything its folder stores; `past.count` rows precede the new ones."""
    held_out, sample = saved.held_out or HeldOut({}, {}), saved.sample
    train = (*past.data, *stage.train) if past.data else ()
    scored = (*stage.test, *stage.valid)
    train_rows, valid_rows = (
        [Part(part.domain, part.rows - past.count) for part in split] for split in (stage.train, stage.valid)
    )
    if sample is not None:
        sample = sample.merge(draw_sample(new, train_rows, valid_rows, limit=sample.limit, seed=spec.seed))
    record = replace(record, stages=[*saved.record.stages, *record.stages])
    return SavedModel.of(
        assembly, dataset, record, held_out.merge(HeldOut.of(new, valid_rows)),
        calibration=fit_calibration(assembly, train, scored, seed=spec.seed), train=train, scored=scored,
        seed=spec.seed, sample=sample, **_description(saved),
    )  # fmt: skip


def _description(saved: SavedModel) -> dict[str, Any]:
    """Return what a model keeps if it is trained on other data."""
    return {"classes": saved.classes, "columns": saved.columns, "forms": saved.forms}


def ledger_of(folder: Path) -> Ledger:
    check_model(folder)
    return read_ledger(folder, version_of(read(folder / "record.json")))


def version_of(record: RunRecord, *, forced: bool = False) -> Version:
    """Return the description of a version from its record; number and date are set when it is written."""
    stage, metric = record.stages[-1], str(record.spec["metric"])
    scores = {name: each.get(metric) for name, each in {**stage["test"], **stage["valid"]}.items()}
    return Version(0, "", str(record.spec["method"]), tuple(stage["train"]), None, metric, scores, forced)


def _result(
    model: SavedModel, spec: Spec, limit: float, unmeasured: Sequence[str], notes: tuple[str, ...]
) -> Adaptation:
    """Compare the scores before and after, and decide whether the model is accepted."""
    stage, metric = model.record.stages[-1], spec.metric
    task = catalog.build("tasks", spec.task, options={})
    (domain,), relative = stage["train"], metric in UNITS and spec.task == "regress"
    before = {name: each[metric] for name, each in stage["before"].items()}
    after = {name: each[metric] for name, each in {**stage["test"], **stage["valid"]}.items()}
    lost = {
        name: 100 * (task.selection_value(metric, before[name]) - task.selection_value(metric, after[name])) / unit
        for name in stage["test"]
        if before[name] is not None and after[name] is not None and (unit := before[name] if relative else 1.0)
    }
    sizes = {**stage["sizes"]["test"], **stage["sizes"]["valid"]}
    worst = max(lost, key=lambda name: lost[name], default="")
    refused = ""
    if worst and lost[worst] > limit:
        fix = "try fewer --steps, a lower --lr or another --method, or accept it with --force"
        points = f"lost {lost[worst]:.1f} points of {metric}"
        change = f"has a {metric} that rose by {lost[worst]:.1f}%" if relative else points
        refused = f"{worst} {change}, more than --max-forgetting {limit:g}: {fix}"
    elif unmeasured:
        refused = f"forgetting of {', '.join(unmeasured)} is unknown: pass the earlier data with --earlier FILE"
    return Adaptation(model, domain, metric, before, after, lost, sizes, refused, notes)


def continue_training(saved: SavedModel, dataset: Dataset, *, device: torch.device, cache: Path | None) -> SavedModel:
    """Train a copy of the model on more examples; a fifth of each domain selects the step.

    The optimizer starts from scratch. Calibration and foreign scores are dropped, because they need all examples.
    """
    if saved.members:
        raise BadInput("an average of several models cannot continue training: use adapt for a new domain, or fit")
    spec = _spec(Spec(**saved.record.spec), dataset, device)
    dataset = with_targets(dataset, saved).checked()
    workspace = Workspace(dataset, device=device, cache=cache)
    (job,) = resolve(Request(specs=(spec,), continues=True), workspace)
    episode = job.episode_in(workspace)
    with stop_at_signal():
        past = PastStages(len(saved.record.stages))
        record, assembly = train(spec, episode, workspace, trained=saved.model, past=past)
    record = replace(record, stages=[*saved.record.stages, *record.stages])
    held_out = (saved.held_out or HeldOut({}, {})).merge(HeldOut.of(dataset, episode.stages[0].valid))
    return SavedModel.of(assembly, dataset, record, held_out, sample=saved.sample, **_description(saved))


def _spec(before: Spec, dataset: Dataset, device: torch.device) -> Spec:
    """Return the spec the model was fitted with, on other examples; the method of an adaptation is not carried over."""
    if before.plan != "all":
        before = replace(before, plan="all", plan_args={}, method="erm", method_args={}, select=Spec.select)
    if any(entry.acts_on == "stream" for _, entry in catalog.unwrap("methods", before.method)):
        raise BadInput(f"method {before.method} learns one domain at a time: use adapt, or fit with another method")
    if catalog.inner_method(before.method).full_batch:
        raise BadInput(f"method {before.method} is fitted to all examples at once: use fit, or adapt for a new domain")
    precision = before.precision if device.type == "cuda" else "fp32"
    data = {"data": dataset.name, "fingerprint": dataset.fingerprint, "processes": parallel.world_size()}
    return replace(before, precision=precision, **data)


FIXED = ("encoder", "neck", "head", "task", "tune", "plan", "data", "fingerprint")


def choose_method(name: str, model: Model, task: str, *, examples: bool) -> tuple[str, dict[str, Any]]:
    """Return the method and its settings; `examples`: there are training examples of the earlier domains.

    `auto` is progressive if the network can grow, replay if there are examples, otherwise distillation (lwf) or erm.
    """
    growable = "M" if any(True for _ in growable_memories(model)) else ""
    growable += "V" if isinstance(model.backbone, GrowsWords) else ""
    if name == "auto":
        name = "progressive" if growable else "replay" if examples else "erm" if LWF.unsupported(task) else "lwf"
    if name == "progressive":
        name = "progressive(erm)"
    for part, entry in catalog.unwrap("methods", name):
        needs_past = entry.load().needs_past
        if needs_past == "examples" and not examples:
            fix = "pass them with --earlier FILE, fit with --keep-sample, or use lwf or progressive"
            raise BadInput(f"method {part} needs training examples of the earlier domains: {fix}")
        if needs_past == "path":
            fix = "use ewc, replay, lwf or progressive"
            raise BadInput(f"method {part} needs training statistics that model folders do not store: {fix}")
    return name, {"method.expand": growable} if name.startswith("progressive(") and growable else {}


def _request(before: Spec, method: str, terms: Terms, settings: Mapping[str, Any], device: torch.device) -> Request:
    """Return the request of an adaptation: the settings of the model, with another method and the given terms."""
    for key in settings:
        if key.partition(".")[0] in FIXED:
            raise BadInput(f"'{key}' cannot change after the model was fitted: leave it out")
    full_batch = catalog.inner_method(before.method).full_batch
    left = ("select", "lr.critic", *(("every",) if full_batch else ()))
    carried = spec_settings(before.json())
    carried = {key: value for key, value in carried.items() if key not in left and not key.startswith("method.")}
    carried["average"] = Spec.average  # the network may grow
    carried["precision"] = before.precision if device.type == "cuda" else "fp32"
    for name in ("steps", "batch", "lr", "metric"):
        chosen = getattr(terms, name)
        if chosen is not None or name != "steps" or not full_batch:
            carried[name] = getattr(before, name) if chosen is None else chosen
    if terms.steps is not None:
        carried["every"] = max(1, min(before.every, terms.steps // 4))
    return single_run(
        method, terms.seed, {**carried, **settings}, encoder=before.encoder, tune=before.tune, plan="stream",
        continues=True,
    )  # fmt: skip
