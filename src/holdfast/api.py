"""Compare methods on data with several domains, train a model with the chosen method, or train one method."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput, NothingFinished
from holdfast.core.files import cache_folder, locked
from holdfast.core.forking import import_aside
from holdfast.core.settings import keywords_of
from holdfast.core.stopping import Deadline, format_seconds
from holdfast.data.readers.in_memory import Source
from holdfast.data.sampling import sample_sizes
from holdfast.defaults import FEWEST_PER_DOMAIN, first_sample, learns
from holdfast.engines.work import default_engine, work
from holdfast.final_model import fit_with_rates
from holdfast.final_model import refit as refit
from holdfast.record import RunRecord
from holdfast.report.page import write_report
from holdfast.spec import Spec
from holdfast.stats.labels import BASELINE, SIMPLE, is_collapsed, settings_key
from holdfast.stats.summary import Summary, summarise
from holdfast.train.analyses import analysis_notes, choose_analyses, data_notes
from holdfast.train.board import Board, RateChoice, final_rates, rate_notes
from holdfast.train.comparison import Comparison as Comparison
from holdfast.train.comparison import failure_notes, limit_sentence, reserve, sample_note, schedule_of, time_limit
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import (
    EXPERIMENT,
    Configuration,
    ManyRuns,
    Request,
    Training,
    method_names,
    resolve,
    searches_rates,
    seed_list,
)  # fmt: skip
from holdfast.train.settings import tokens_to_encode
from holdfast.train.training_data import DataOptions
from holdfast.train.workspace import Workspace, choose_device

if TYPE_CHECKING:
    from holdfast.folders.format import SavedModel

WEIGHT_BYTES = 2 << 30  # that runs may store for soups: all together, and once more those of the baseline
EPISODES = 5  # of a comparison, about
# of combinations, the report and the final model: they import scikit-learn and SciPy, which takes seconds
LATER = (
    "holdfast.prediction.combine",
    "holdfast.uncertainty.conformal",
    "holdfast.prediction.soup",
    "holdfast.training",
)
COLLAPSED = "at most half of the classes are still predicted for unlabelled examples, so that its adaptation is refused"


@dataclass(kw_only=True, eq=False)
class CompareOptions(ManyRuns):
    """Options of a comparison."""

    out: str | Path = "runs/compare"
    analyse: str | Sequence[str] = ()  # analyses of every run
    model: str | Path | None = None  # folder that `refit` will write, which is checked before the first run
    baselines: bool = True  # the most frequent class, and simple models on frozen and on simple features
    combinations: bool = True  # mixtures of simple baselines and the best network, averages over seeds, and soups
    search_rate: bool | None = None  # try other learning rates on source domains, by default unless `lr` is set


@keywords_of(CompareOptions)
def compare(data: Source, options: CompareOptions) -> Comparison:
    """Train every method on every episode of the plan with every seed, in order of value until the time is up.

    `train.queue` has the order. Finished runs in `out` are not repeated. `methods` is `auto` for the default slate,
    `all`, or a list, which may contain subclasses of `holdfast.methods.base.Method`; `settings` may contain every field
    of a spec, or dotted names such as `encoder.length`. `model` is the folder that `refit` will write: it is checked
    here, before the first run. The `baselines` are the most frequent class, and simple models on frozen and on simple
    features. The `combinations` come last: mixtures of simple baselines and the best network, and averages over seeds,
    of probabilities and (in a soup) of weights, from the finished runs.

    `budget` is a duration such as `90s`, `2m` or `1h`, counted from `started` (a value of `time.monotonic`), by
    default `defaults.LIMIT`; `none` means no limit. A run that fails is reported in the result; other runs go on.

    `search_rate` tries other learning rates on source domains; by default for encoders that learn, unless `lr` is set.
    With `skip_bad`, rows of a table with bad cells are left out and counted.
    """
    watch, out = options.watch or ProgressListener(), Path(options.out)
    shared = {each.name: getattr(options, each.name) for each in fields(Training)}
    every = None if options.steps is None else max(1, min(25, options.steps // 4))
    request = Request(
        methods=method_names(options.methods), seeds=seed_list(options.seeds), plan=options.plan, select=options.select,
        every=every, baselines=options.baselines, tested=True, model_settings=EXPERIMENT,
        model=None if options.model is None else Path(options.model), **shared,
    )  # fmt: skip
    deadline = time_limit(options.budget, options.started, watch)
    workspace = _load(data, options, out, watch)
    specs = _plan(request, workspace, deadline, combinations=options.combinations)
    watch.note(limit_sentence(deadline.seconds, default=options.budget is None))
    board = Board(
        specs, request.seeds, workspace, limit=deadline.seconds, search=searches_rates(options, options.search_rate),
        engine=options.engine or default_engine(specs, steps=watch.wants_steps), watch=watch,
    )  # fmt: skip
    _train(board, deadline, model=options.model is not None)
    done = _summarise(board, deadline, out, combinations=options.combinations)
    if parallel.is_first():
        title, words = f"Holdfast: {done.dataset.name}", options.report_words(data)
        write_report(done.summary, done.report, title=title, notes=done.notes, source=words)
    return done


def _load(data: Source, options: CompareOptions, out: Path, watch: ProgressListener) -> Workspace:
    """Read the data and return the context of its runs."""
    from holdfast.auditing.repeated import repeated_note

    settings = options.settings or {}
    dataset = options.load(data, settings)
    analyses = choose_analyses(method_names(options.analyse), [settings.get("task") or dataset.task or Spec.task])
    workspace = Workspace(
        dataset, choose_device(options.device), cache_folder() if options.cache else None, out=out,
        analyse=tuple(analyses), keep_outputs=options.combinations or options.model is not None,
        keep_states=options.model is not None, on_encoding=watch.encoding,
    )  # fmt: skip
    if dataset.classes and (note := repeated_note(dataset, options.words(data))):
        workspace.notes.append(note)
    return workspace


def _plan(request: Request, workspace: Workspace, deadline: Deadline, *, combinations: bool) -> list[Spec]:
    """Return the specs to compare, with the first seed; decide on samples of the rows and on stored weights."""
    jobs = resolve(replace(request, seeds=request.seeds[:1]), workspace)
    specs = list({str(job.spec): job.spec for job in jobs}.values())
    workspace.sizes = _sample_sizes(specs, workspace, deadline)
    workspace.weight_limits = _weight_limits(specs, request.seeds) if combinations else {}
    return specs


def _train(board: Board, deadline: Deadline, *, model: bool) -> None:
    """Work off the runs in order of value until the time is up, less what report and final model need."""
    workspace, imports = board.workspace, None
    limit, before = deadline.seconds, deadline.seconds - deadline.left()
    reserved = partial(reserve, board, limit=limit, model=model, before=before) if math.isfinite(limit) else float
    workspace.deadline = deadline.earlier(reserved())
    for _ in work(board, workspace, watch=board.watch, engine=board.engine):
        workspace.deadline.seconds = limit - reserved()
        imports = imports or import_aside(*LATER)
    if imports is not None:
        imports.join()
    workspace.deadline = Deadline()


def _summarise(board: Board, deadline: Deadline, out: Path, *, combinations: bool) -> Comparison:
    """Combine the finished runs and return what they say."""
    workspace, dataset, limit = board.workspace, board.workspace.dataset, deadline.seconds
    records = board.results()
    if not records:
        causes = "; ".join(dict.fromkeys(failure.cause for failure in board.failures))
        if causes and all(failure.kind == "input" for failure in board.failures):
            raise BadInput(board.failures[0].cause)
        raise NothingFinished(
            f"no run could be completed: {causes}" if causes else
            f"no run was completed within {format_seconds(limit)}: use a larger --budget"
        )  # fmt: skip
    if combinations:
        records += parallel.from_first(partial(_combined, records, workspace))
    metric, choices = next(iter(board.specs.values())).metric, tuple(board.choices())
    summary = summarise(records, metric)
    if summary.decision is not None:
        summary = summary.with_records(parallel.from_first(partial(_measured_coverage, summary, workspace)))
        summary = _with_final_rate(summary, choices)
    schedule = schedule_of(board, seconds=time.monotonic() - deadline.started, limit=limit)
    notes = [
        *dataset.notes,
        *workspace.notes,
        *analysis_notes(summary.records, workspace.analyse),
        *failure_notes(board.failures),
        *data_notes(workspace.analyse, dataset),
        *(text for text in (schedule.note, sample_note(summary.shown.groups, len(dataset))) if text),
        *rate_notes(choices),
        *(f"{name} is not chosen: {COLLAPSED}" for name, runs in summary.every.groups.items() if is_collapsed(runs)),
    ]
    return Comparison(
        summary, out / "report.html", dataset, tuple(notes), schedule, workspace.identical, choices,
        tuple(board.failures), deadline, board.workers,
    )  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """A model that was trained on all domains, its folder, and its scores on held-out rows of each domain."""

    model: SavedModel
    folder: Path
    record: RunRecord
    metric: str
    valid: Mapping[str, float | None]
    rate: RateChoice | None  # if several learning rates were tried
    notes: tuple[str, ...]


@dataclass(kw_only=True, eq=False)
class FitOptions(DataOptions, Configuration):
    """Options of a training on all domains. Settings come before the other options, `method` and `encoder` included."""

    out: str | Path = "runs/model"
    pretrain_steps: int = 0  # masked-word training of the text encoder first
    watch: ProgressListener | None = None
    budget: str | None = None  # such as `90s`, `2m` or `1h`; without one, only the search for a rate is limited
    search_rate: bool | None = None  # try other learning rates, by default unless `lr` is set
    started: float | None = None  # value of `time.monotonic` from which the budget is counted


@keywords_of(FitOptions)
def fit(data: Source, options: FitOptions) -> Fitted:
    """Train one method on all domains and save a model folder; an interrupted training continues.

    The model is trained at the default rate first. While time remains, other rates are tried and compared on held-out
    rows, by default for encoders that learn, unless `lr` is set; `final_model.fit_with_rates` has the rules of the
    `budget`. `settings` may contain every setting of a spec, `method` and `encoder` included; they come before the
    other arguments. `pretrain_steps` continues the masked-word training of a text encoder first.
    """
    from holdfast.folders.format import check_folder

    out, watch, settings = Path(options.out), options.watch, dict(options.settings or {})
    chosen = {name: settings.pop(name) for name in ("method", "encoder", "tune", "metric") if name in settings}
    check_folder(out)
    with locked(out) if parallel.is_first() else nullcontext():  # before the data is read, which may take long
        dataset = options.load(data, settings)
        words: Sequence[str] = ()
        if options.pretrain_steps:
            from holdfast.adaptation.pretrain import pretrain_for  # imports transformers, which takes seconds

            chosen["encoder"], words = pretrain_for(
                dataset, str(chosen.get("encoder", options.encoder)), out.with_name(f"{out.name}-encoder"),
                steps=options.pretrain_steps, seed=options.seed, device=options.device, watch=watch,
            )  # fmt: skip
        trained, rate = fit_with_rates(
            replace(options, **chosen, settings=settings), dataset, out,
            search=searches_rates(options, options.search_rate), budget=options.budget, started=options.started,
            watch=watch,
        )  # fmt: skip
    used = str(trained.record.spec["metric"])
    valid = {domain: scores[used] for domain, scores in trained.record.stages[-1]["valid"].items()}
    notes = (*dataset.notes, *words, *trained.notes)
    return Fitted(trained.model, out, trained.record, used, valid, rate, notes)


def _sample_sizes(specs: Sequence[Spec], workspace: Workspace, deadline: Deadline) -> tuple[int, ...]:
    """Return the numbers of rows of nested samples; all rows only for streams and where the user set a number."""
    total = len(workspace.dataset)
    spec = next((each for each in specs if each.method not in SIMPLE), specs[0])
    if spec.plan == "stream" or spec.rows or parallel.world_size() > 1:
        return (total,)
    entry, kind = catalog.lookup("encoders", spec.encoder), workspace.dataset.raw.kind
    first = first_sample(
        kind, tuned=learns(entry, spec.tune), pretrained=entry.pretrained, device=workspace.device.type,
        tokens=tokens_to_encode(workspace.dataset, spec),
        spent=0.0 if math.isinf(deadline.seconds) else 1 - deadline.left() / deadline.seconds,
    )  # fmt: skip
    while first < FEWEST_PER_DOMAIN * len(workspace.dataset.domains):
        first *= 2
    return sample_sizes(total, first)


def _weight_limits(specs: Sequence[Spec], seeds: Sequence[int]) -> dict[str, int]:
    """Return the bytes of weights that a run of each method may store for soups, which need several seeds.

    The baseline has a limit of its own, so that large encoders have a soup of its seeds at least.
    """
    methods = [spec.method for spec in specs if spec.method not in SIMPLE]
    if len(set(seeds)) < 2 or not methods:
        return {}
    runs = len(seeds) * EPISODES
    limits = {method: WEIGHT_BYTES // (len(methods) * runs) for method in methods}
    return limits | ({BASELINE: WEIGHT_BYTES // runs} if BASELINE in methods else {})


def _with_final_rate(summary: Summary, choices: Sequence[RateChoice]) -> Summary:
    """Give the chosen method the rate that is best over all domains, which a model of all domains uses."""
    decision = summary.decision
    if decision is None or "searched" not in decision.spec:
        return summary
    rate = final_rates(choices).get(settings_key(decision.spec, "seed"), decision.spec["lr"])
    return replace(summary, decision=replace(decision, spec={**decision.spec, "lr": rate}))


def _combined(records: list[RunRecord], workspace: Workspace) -> list[RunRecord]:
    """Combine finished runs and save the records of the combinations."""
    from holdfast.prediction.combine import combine

    assert workspace.out is not None
    combined = combine(records, workspace)
    for record in combined:
        record.save(workspace.out / "records")
    return combined


def _measured_coverage(summary: Summary, workspace: Workspace) -> dict[str, RunRecord]:
    """Measure the coverage of prediction sets on left-out domains: records of the choice by id, which are saved."""
    from holdfast.uncertainty.conformal import with_coverage
    from holdfast.uncertainty.left_out import collect

    decision = summary.decision
    assert workspace.out is not None
    assert decision is not None
    chosen, own = summary.every.groups[decision.label], workspace.sampled(decision.spec.get("rows") or 0)
    runs = collect(chosen, {record.id: record for record in summary.records}, own)
    measured = {} if runs is None else {r.id: r for r in with_coverage(chosen, runs.sample(None))}
    for record in chosen:
        if record.id in measured and measured[record.id].stages != record.stages:
            measured[record.id].save(workspace.out / "records")
    return measured
