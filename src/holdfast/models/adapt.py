"""adapt: a trained model learns one more domain, is measured on all earlier ones, and is kept only if it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import locked
from holdfast.data.align import (
    align_features,
    new_domain_rows,
    offset_parts,
    one_domain,
    with_classes,
    without_held_out,
)
from holdfast.data.dataset import Dataset, join
from holdfast.data.load import load_data
from holdfast.data.readers.memory import Source
from holdfast.data.sample import draw_sample
from holdfast.data.splits import TEST, TRAIN, HeldOut, merge_marked, split_parts
from holdfast.models.calibration import measure
from holdfast.models.saved import SavedModel, check_model, load_model
from holdfast.models.versions import Ledger, Version, add_version, read_ledger
from holdfast.nn.growth import GrowsWords, growable_memories
from holdfast.nn.model import Model
from holdfast.protocols.plan import Episode, PastStages, Stage
from holdfast.protocols.resume import Saver, stop_at_signal
from holdfast.record import RunRecord, read
from holdfast.run.assemble import Assembly
from holdfast.run.progress import ProgressListener
from holdfast.run.resolve import Request, resolve, single_run
from holdfast.run.settings import GROUPS
from holdfast.run.train import train
from holdfast.run.workspace import Workspace, choose_device
from holdfast.spec import Spec

TASKS = ("classify", "respond")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How a model is to learn one more domain, and how much of the earlier ones it may forget; None is as it was."""

    method: str = "auto"
    max_forgetting: float = 5.0  # points of the metric, in any earlier domain
    force: bool = False  # keep it whatever was forgotten, or cannot be measured
    steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    metric: str | None = None
    seed: int = 0
    device: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.max_forgetting >= 0:
            raise BadInput(f"--max-forgetting is a number of points, 0 or more, not {self.max_forgetting}")


@dataclass(frozen=True)
class Adaptation:
    """What an adaptation came to: scores by domain before and after, in points what was forgotten, and the model."""

    model: SavedModel
    domain: str
    metric: str
    before: dict[str, float | None]
    after: dict[str, float | None]
    forgetting: dict[str, float]  # of each earlier domain; below 0 where it gained
    examples: dict[str, int]  # held-out examples of each domain that were measured
    refused: str = ""  # why it is not to be kept; empty where it holds
    notes: tuple[str, ...] = ()
    version: int | None = None  # in its folder, where it was kept


def adapt(
    model: str | Path,
    data: Source,
    terms: Terms | None = None,
    *,
    domain: str | None = None,
    earlier: Sequence[Source] = (),
    columns: Mapping[str, str] | None = None,
    watch: ProgressListener | None = None,
) -> Adaptation:
    """Adapt a model folder; where the model holds, or is forced, it becomes the folder's next version."""
    folder, terms = Path(model), terms or Terms()
    saved = load_model(folder)
    task = catalog.build("tasks", saved.task, options={})
    need = tuple(each for each in task.needs if each != "domain")
    new, *again = (
        align_features(load_data(each, columns=columns, need=need, form=task.data_form), saved.columns)
        for each in (data, *earlier)
    )
    with locked(folder):
        ledger = ledger_of(folder)
        done = adapt_model(
            saved, new, terms, domain=domain, earlier=again, parent=ledger.current, folder=folder, watch=watch
        )
        if done.refused and not terms.force:
            return done
        about = version_of(done.model.record, forced=bool(done.refused))
        made = add_version(folder, ledger, about, lambda draft: done.model.save(draft, name=folder.name))
        return replace(done, version=made.number)


def adapt_model(
    saved: SavedModel,
    new: Dataset,
    terms: Terms,
    *,
    domain: str | None = None,
    earlier: Sequence[Dataset] = (),
    parent: int = 1,
    folder: Path | None = None,
    watch: ProgressListener | None = None,
) -> Adaptation:
    """Let a copy of the model learn one more domain; the model itself is left as it was."""
    if saved.task not in TASKS:
        raise BadInput(
            f"a model for the task {saved.task} cannot be adapted, only one for {' or '.join(TASKS)}: fit it anew"
        )
    if new.raw.kind != saved.encoder.takes:
        raise BadInput(f"this model takes {saved.encoder.takes}s but the data holds {new.raw.kind}s")
    new = one_domain(with_classes(new, saved.classes), domain, saved.domains)
    new, left = without_held_out(new, saved.held_out)
    notes = [
        *new.notes,
        *([f"{left} examples are held-out ones of earlier domains and were not learned"] if left else []),
    ]
    past = _past(saved, earlier)
    dataset = new if past is None else join([past, new])
    trained, held = ((), ()) if past is None else (split_parts(past, TRAIN), split_parts(past, TEST))
    unmeasured = sorted(set(saved.domains) - {part.domain for part in held})
    if unmeasured and not terms.force:
        raise _nothing_to_measure(unmeasured, given=bool(earlier))
    watch = watch or ProgressListener()
    workspace = Workspace(dataset, choose_device(terms.device), on_encoding=watch.encoding)
    method, options = choose_method(terms.method, saved.model, saved.task, examples=bool(trained))
    request = _request(Spec(**saved.record.spec), method, terms, {**options, **terms.settings}, workspace.device)
    start, (seed,) = len(dataset) - len(new), request.seeds
    learn, choose = new_domain_rows(new, start).train_valid(0.2, seed)
    episode = Episode(f"{parent}>{learn.domain}", (Stage((learn,), (choose,), held),))
    (job,) = resolve(replace(request, episode=episode), workspace)
    spec = job.spec
    if spec.neck != saved.record.spec["neck"]:
        raise BadInput(
            f"method {method} needs a neck such as {spec.neck}, but this model has the neck "
            f"{saved.record.spec['neck']}: use another method, such as lwf or replay"
        )
    saver = Saver(None if folder is None else folder / "checkpoints" / f"{job.id}.safetensors")
    watch.start(1, 0)
    watch.begin(f"{spec.method} on {learn.domain}", job.steps)
    with stop_at_signal():
        record, built = train(
            spec, episode, workspace, saver=saver, tick=watch.step,
            trained=saved.model, past=PastStages(len(saved.record.stages), trained),
        )  # fmt: skip
    watch.end(record)
    saver.finish()
    made = _model(saved, built, record, new, episode.stages[0], PastStages(start, () if unmeasured else trained), spec)
    if made.gauge is None and saved.gauge is not None:
        notes.append("without examples of the earlier domains, calibration and foreignness are not known any more")
    return _told(made, spec, terms.max_forgetting, unmeasured, tuple(notes))


def _past(saved: SavedModel, earlier: Sequence[Dataset]) -> Dataset | None:
    """What is there of the earlier domains, marked train and test: the data given again, or the kept sample."""
    if not earlier:
        return None if saved.kept is None else saved.kept.dataset
    if saved.held_out is None:
        raise BadInput("this model folder does not say which examples were held out: fit the model again")
    marked = [saved.held_out.mark(with_classes(each, saved.classes)) for each in earlier]
    there = [each for each in marked if len(each)]
    return merge_marked(there) if there else None


def _nothing_to_measure(domains: Sequence[str], *, given: bool) -> BadInput:
    named = ", ".join(domains)
    if given:
        return BadInput(
            f"none of the held-out examples of {named} is in what was given with --earlier: give the files that the "
            "model learned from, unchanged, or go without with --force"
        )
    return BadInput(
        f"what would be forgotten of {named} cannot be measured without examples: give the earlier data again with "
        "--earlier FILE, fit with --keep-sample, or go without with --force"
    )


def _model(
    saved: SavedModel, built: Assembly, record: RunRecord, new: Dataset, stage: Stage, past: PastStages, spec: Spec
) -> SavedModel:
    """The new model with all that its folder holds; the rows of `past.count` examples come before the new ones."""
    gauge, held = None, saved.held_out or HeldOut({}, {})
    if spec.task == "classify" and past.data and built.method is not None:
        gauge = measure(
            built.method.deployed, built.examples, (*past.data, *stage.train), (*stage.test, *stage.valid),
            classes=len(saved.classes), seed=spec.seed,
        )  # fmt: skip
    learned, chosen = (offset_parts(parts, -past.count) for parts in (stage.train, stage.valid))
    kept = saved.kept
    if kept is not None:
        kept = kept.merge(draw_sample(new, learned, chosen, limit=kept.limit, seed=spec.seed))
    record = replace(record, stages=[*saved.record.stages, *record.stages])
    return SavedModel(
        built.deploy(), built.encoder, saved.classes, record, gauge, held.merge(HeldOut.of(new, chosen)), kept,
        saved.columns,
    )  # fmt: skip


def ledger_of(folder: Path) -> Ledger:
    """The versions of a model folder."""
    check_model(folder)
    return read_ledger(folder, version_of(read(folder / "record.json")))


def version_of(record: RunRecord, *, forced: bool = False) -> Version:
    """What a version tells of itself, from its record; its number and date come when it is written."""
    stage, metric = record.stages[-1], str(record.spec["metric"])
    scores = {name: each.get(metric) for name, each in {**stage["test"], **stage["valid"]}.items()}
    return Version(0, "", str(record.spec["method"]), tuple(stage["train"]), None, metric, scores, forced)


def _told(made: SavedModel, spec: Spec, limit: float, unmeasured: Sequence[str], notes: tuple[str, ...]) -> Adaptation:
    """Compare before and after, and say whether the model may be kept."""
    stage, metric = made.record.stages[-1], spec.metric
    task = catalog.build("tasks", spec.task, options={})
    (domain,) = stage["train"]
    before = {name: each[metric] for name, each in stage["before"].items()}
    after = {name: each[metric] for name, each in {**stage["test"], **stage["valid"]}.items()}
    lost = {}
    for name in stage["test"]:
        then, now = before[name], after[name]
        if then is not None and now is not None:
            lost[name] = 100 * (task.selection_value(metric, then) - task.selection_value(metric, now))
    sizes = {**stage["sizes"]["test"], **stage["sizes"]["valid"]}
    worst = max(lost, key=lambda name: lost[name], default="")
    refused = ""
    if worst and lost[worst] > limit:
        refused = (
            f"{worst} lost {lost[worst]:.1f} points of {metric}, more than the {limit:g} that --max-forgetting allows: "
            "try fewer --steps, a lower --lr or another --method, or keep it with --force"
        )
    elif unmeasured:
        refused = f"what was forgotten of {', '.join(unmeasured)} is not known"
    return Adaptation(made, domain, metric, before, after, lost, sizes, refused, notes)


def continue_training(saved: SavedModel, dataset: Dataset, *, device: torch.device, cache: Path | None) -> SavedModel:
    """Train a copy of the model on more examples; a fifth of each domain selects the step.

    The optimizer starts from scratch. Calibration and foreignness are dropped, because they need all examples.
    """
    spec = _spec(Spec(**saved.record.spec), dataset, device)
    dataset = with_classes(dataset, saved.classes).checked()
    workspace = Workspace(dataset, device=device, cache=cache)
    (job,) = resolve(Request(specs=(spec,), continues=True), workspace)
    episode = job.episode_in(workspace)
    with stop_at_signal():
        past = PastStages(len(saved.record.stages))
        record, built = train(spec, episode, workspace, trained=saved.model, past=past)
    record = replace(record, stages=[*saved.record.stages, *record.stages])
    held = (saved.held_out or HeldOut({}, {})).merge(HeldOut.of(dataset, episode.stages[0].valid))
    return SavedModel(built.deploy(), built.encoder, saved.classes, record, None, held, saved.kept, saved.columns)


def _spec(before: Spec, dataset: Dataset, device: torch.device) -> Spec:
    """What the model was fitted by, on other examples; a rule that it was adapted by was for that domain alone."""
    if before.plan != "all":
        before = replace(before, plan="all", plan_args={}, method="erm", method_args={}, select=Spec.select)
    if any(layer.acts_on == "stream" for _, layer in catalog.unwrap("methods", before.method)):
        raise BadInput(f"method {before.method} learns domain after domain, so use adapt, or fit with another method")
    precision = before.precision if device.type == "cuda" else "fp32"
    told = {"data": dataset.name, "fingerprint": dataset.fingerprint, "processes": parallel.world_size()}
    return replace(before, precision=precision, **told)


FIXED = ("encoder", "neck", "head", "task", "tune", "plan", "data", "fingerprint")


def choose_method(name: str, model: Model, task: str, *, examples: bool) -> tuple[str, dict[str, Any]]:
    """The rule's name and settings of its own; `examples` says whether some of the earlier domains are there.

    `auto` grows where the network has slots, rehearses where there are examples, else is taught by the model as it was.
    """
    letters = ("M" if any(True for _ in growable_memories(model)) else "") + (
        "V" if isinstance(model.backbone, GrowsWords) else ""
    )
    if name == "auto":
        name = "progressive" if letters else "replay" if examples else "lwf" if task == "classify" else "erm"
    if name == "progressive":
        name = "progressive(erm)"
    own = {"method.expand": letters} if name.startswith("progressive(") and letters else {}
    for part, entry in catalog.unwrap("methods", name):
        match entry.load().needs_past:
            case "examples" if not examples:
                raise BadInput(
                    f"method {part} looks at training examples of the earlier domains: give them with --earlier FILE, "
                    "fit with --keep-sample, or use lwf or progressive"
                )
            case "path":
                raise BadInput(
                    f"method {part} needs what the training of the earlier domains left on its way, which a model "
                    "folder does not hold: use ewc, replay, lwf or progressive"
                )
    return name, own


def _request(before: Spec, method: str, terms: Terms, settings: Mapping[str, Any], device: torch.device) -> Request:
    """Return the request of an adaptation: the settings of the model, with another method and the given terms."""
    for key in settings:
        if key.partition(".")[0] in FIXED:
            raise BadInput(f"'{key}' cannot change after the model was fitted: leave it out")
    skipped = {*FIXED, *(f"{group}_args" for group in GROUPS), "method", "select", "processes", "seed"}
    carried = {each.name: getattr(before, each.name) for each in fields(before) if each.name not in skipped}
    for group in ("encoder", "neck", "head", "task"):
        carried |= {f"{group}.{name}": value for name, value in getattr(before, f"{group}_args").items()}
    carried |= {"task": before.task, "neck": before.neck, "head": before.head}
    carried["precision"] = before.precision if device.type == "cuda" else "fp32"
    terms_set = {name: getattr(terms, name) for name in ("steps", "batch", "lr", "metric")}
    carried |= {name: value for name, value in terms_set.items() if value is not None}
    if terms.steps is not None:
        carried["every"] = max(1, min(before.every, terms.steps // 4))
    return single_run(
        method, terms.seed, {**carried, **settings}, encoder=before.encoder, tune=before.tune, plan="stream",
        continues=True,
    )  # fmt: skip
