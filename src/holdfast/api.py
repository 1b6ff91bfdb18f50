"""Compare methods on data with several domains, train a model with the chosen method, or train one method."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput, NothingFinished
from holdfast.core.files import cache_folder, locked
from holdfast.core.forking import import_aside
from holdfast.core.stopping import Deadline, format_seconds
from holdfast.data.readers.in_memory import Source
from holdfast.data.sampling import sample_sizes
from holdfast.defaults import FEWEST_PER_DOMAIN, first_sample, learns
from holdfast.engines.local import default_engine
from holdfast.engines.work import work
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
from holdfast.train.facts import tokens_to_encode
from holdfast.train.jobs import Engine
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import EXPERIMENT, Request, method_names, resolve, seed_list
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


def compare(
    data: Source,
    *,
    methods: str | Sequence[str | type] = ("auto",),
    seeds: int | Sequence[int] = 3,
    out: str | Path = "runs/compare",
    encoder: str = "auto",
    tune: str = "auto",
    plan: str = "auto",
    select: str = "train-validation",
    metric: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    device: str = "auto",
    cache: bool = True,
    columns: Mapping[str, str] | None = None,
    examples: int | None = None,
    unlabelled: Source | None = None,
    empty_labels: str = "error",
    skip_bad: bool = False,
    data_dir: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    analyse: str | Sequence[str] = (),
    watch: ProgressListener | None = None,
    engine: Engine | None = None,
    model: str | Path | None = None,
    baselines: bool = True,
    combinations: bool = True,
    budget: str | None = None,
    search_rate: bool | None = None,
    started: float | None = None,
) -> Comparison:
    """Train every method on every episode of the plan with every seed, in order of value until the time is up.

    `train.queue` has the order. Finished runs in `out` are not repeated. `methods` is `auto` for the default slate,
    `all`, or a list, which may contain subclasses of `holdfast.methods.base.Method`.
    `model` is the folder that `refit` will write: it is checked here, before the first run. The `baselines` are the
    most frequent class, and simple models on frozen and on simple features. The `combinations` come last: mixtures of
    simple baselines and the best network, and averages over seeds, of probabilities and (in a soup) of weights, from
    the finished runs.

    `budget` is a duration such as `90s`, `2m` or `1h`, counted from `started` (a value of `time.monotonic`), by
    default `defaults.LIMIT`; `none` means no limit. A run that fails is reported in the result; other runs go on.

    `search_rate` tries other learning rates on source domains; by default for encoders that learn, unless `lr` is set.
    With `skip_bad`, rows of a table with bad cells are left out and counted.
    """
    watch = watch or ProgressListener()
    source = DataOptions(
        data, columns=columns, data_dir=data_dir, examples=examples, unlabelled=unlabelled, empty_labels=empty_labels,
        skip_bad=skip_bad,
    )  # fmt: skip
    request = Request(
        data=source, methods=method_names(methods), seeds=seed_list(seeds), encoder=encoder, tune=tune, plan=plan,
        select=select, metric=metric, steps=steps, batch=batch, lr=lr,
        every=None if steps is None else max(1, min(25, steps // 4)), settings=settings or {},
        analyse=method_names(analyse), baselines=baselines, combinations=combinations, search_rate=search_rate,
        tested=True, out=Path(out), device=device, cache=cache, model=None if model is None else Path(model),
        model_settings=EXPERIMENT,
    )  # fmt: skip
    deadline = time_limit(budget, started, watch)
    workspace = _load(request, watch)
    specs = _plan(request, workspace, deadline)
    watch.note(limit_sentence(deadline.seconds, default=budget is None))
    board = _queue(specs, request, workspace, deadline, engine=engine, watch=watch)
    _train(board, deadline, model=model is not None)
    done = _summarise(board, request, deadline)
    _report(done, source)
    return done


def _load(request: Request, watch: ProgressListener) -> Workspace:
    """Read the data and return the context of its runs."""
    from holdfast.auditing.repeated import repeated_note

    assert request.data is not None
    dataset = request.data.load(request.settings)
    analyses = choose_analyses(request.analyse, [request.settings.get("task") or dataset.task or Spec.task])
    workspace = Workspace(
        dataset, choose_device(request.device), cache_folder() if request.cache else None, out=request.out,
        analyse=tuple(analyses), keep_outputs=request.combinations or request.model is not None,
        keep_states=request.model is not None, on_encoding=watch.encoding,
    )  # fmt: skip
    words = replace(request.data, examples=None).words()
    if dataset.classes and (note := repeated_note(dataset, words)):
        workspace.notes.append(note)
    return workspace


def _plan(request: Request, workspace: Workspace, deadline: Deadline) -> list[Spec]:
    """Return the specs to compare, with the first seed; decide on samples of the rows and on stored weights."""
    jobs = resolve(replace(request, seeds=request.seeds[:1]), workspace)
    specs = list({str(job.spec): job.spec for job in jobs}.values())
    workspace.sizes = _sample_sizes(specs, workspace, deadline)
    workspace.weight_limits = _weight_limits(specs, request.seeds) if request.combinations else {}
    return specs


def _queue(
    specs: Sequence[Spec], request: Request, workspace: Workspace, deadline: Deadline, *, engine: Engine | None,
    watch: ProgressListener,
) -> Board:  # fmt: skip
    """Return the board that gives the runs of the specs to an engine in order of value."""
    engine = engine or default_engine(specs, steps=watch.wants_steps)
    return Board(
        specs, request.seeds, workspace, limit=deadline.seconds, search=request.searches_rates, engine=engine,
        watch=watch,
    )  # fmt: skip


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


def _summarise(board: Board, request: Request, deadline: Deadline) -> Comparison:
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
    if request.combinations:
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
    assert request.out is not None
    return Comparison(
        summary, request.out / "report.html", dataset, tuple(notes), schedule, workspace.identical, choices,
        tuple(board.failures), deadline, board.workers,
    )  # fmt: skip


def _report(done: Comparison, source: DataOptions) -> None:
    """Write the report, which needs nothing but what the comparison found."""
    if parallel.is_first():
        title = f"Holdfast: {done.dataset.name}"
        write_report(done.summary, done.report, title=title, notes=done.notes, source=source.report_words())


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


def fit(
    data: Source,
    *,
    method: str = "erm",
    out: str | Path = "runs/model",
    encoder: str = "auto",
    tune: str = "auto",
    metric: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    keep_sample: int = 0,
    left_out: bool = False,
    device: str = "auto",
    cache: bool = True,
    columns: Mapping[str, str] | None = None,
    examples: int | None = None,
    unlabelled: Source | None = None,
    empty_labels: str = "error",
    skip_bad: bool = False,
    data_dir: Path | None = None,
    pretrain_steps: int = 0,
    settings: Mapping[str, Any] | None = None,
    watch: ProgressListener | None = None,
    budget: str | None = None,
    search_rate: bool | None = None,
    started: float | None = None,
) -> Fitted:
    """Train one method on all domains and save a model folder; an interrupted training continues.

    The model is trained at the default rate first. While time remains, other rates are tried and compared on held-out
    rows, by default for encoders that learn, unless `lr` is set; `final_model.fit_with_rates` has the rules of the
    `budget`. `settings` may contain every setting of a spec, `method` and `encoder` included; they come before
    the arguments. `pretrain_steps` continues the masked-word training of a text encoder first.
    """
    from holdfast.folders.format import check_folder
    from holdfast.training import Configuration

    out, options = Path(out), dict(settings or {})
    chosen = {"metric": options.pop("metric", metric), "method": method, "encoder": encoder, "tune": tune}
    check_folder(out)
    with locked(out) if parallel.is_first() else nullcontext():  # before the data is read, which may take long
        dataset = DataOptions(
            data, columns=columns, data_dir=data_dir, examples=examples, unlabelled=unlabelled,
            empty_labels=empty_labels, skip_bad=skip_bad,
        ).load(options)  # fmt: skip
        chosen |= {name: options.pop(name) for name in chosen if name in options}
        words: Sequence[str] = ()
        if pretrain_steps:
            from holdfast.adaptation.pretrain import pretrain_for  # imports transformers, which takes seconds

            chosen["encoder"], words = pretrain_for(
                dataset, str(chosen["encoder"]), out.with_name(f"{out.name}-encoder"), steps=pretrain_steps, seed=seed,
                device=device, watch=watch,
            )  # fmt: skip
        configuration = Configuration(
            **chosen, steps=steps, batch=batch, lr=lr, seed=seed, device=device, cache=cache, keep_sample=keep_sample,
            left_out=left_out, settings=options,
        )  # fmt: skip
        search = (lr is None and "lr" not in options) if search_rate is None else search_rate
        trained, rate = fit_with_rates(
            configuration, dataset, out, search=search, budget=budget, started=started, watch=watch
        )
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
