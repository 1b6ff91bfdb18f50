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
from holdfast.core.stopping import Deadline, format_seconds, parse_duration
from holdfast.data.dataset import Dataset
from holdfast.data.readers.in_memory import Source
from holdfast.data.sampling import sample_sizes
from holdfast.defaults import LIMIT, first_sample, learns
from holdfast.engines.local import default_engine
from holdfast.final_model import fit_with_rates
from holdfast.final_model import refit as refit
from holdfast.record import RunRecord
from holdfast.report.page import write_report
from holdfast.spec import Spec
from holdfast.stats.labels import BASELINE, SIMPLE, Groups, is_collapsed, settings_key
from holdfast.stats.summary import Summary, summarise
from holdfast.train.analyses import analysis_notes, choose_analyses, data_notes
from holdfast.train.board import (
    Board,
    Failure,
    RateChoice,
    final_rates,
    rate_notes,
)
from holdfast.train.comparison import Comparison as Comparison
from holdfast.train.jobs import Engine
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import EXPERIMENT, Request, method_names, resolve, seed_list
from holdfast.train.schedule import (
    limit_sentence,
    reserve,
    schedule_of,
)
from holdfast.train.work import work
from holdfast.train.workspace import Workspace, choose_device, training_data

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
    limit = LIMIT if budget is None else parse_duration(budget)
    deadline = Deadline(limit, started=started)
    watch.limit(lambda: None if math.isinf(limit) else deadline.left())
    task = (settings or {}).get("task")
    dataset = training_data(
        data, task=task, columns=columns, data_dir=data_dir, examples=examples, unlabelled=unlabelled,
        empty_labels=empty_labels, settings=settings, skip_bad=skip_bad,
    )  # fmt: skip
    analyses = choose_analyses(method_names(analyse), [task or dataset.task or Spec.task])
    folder = cache_folder() if cache else None
    workspace = Workspace(dataset, choose_device(device), folder, out=Path(out), analyse=tuple(analyses))
    workspace.keep_outputs = combinations or model is not None
    workspace.on_encoding = watch.encoding
    source = _command_line(data, columns=columns, examples=examples, data_dir=data_dir)
    if repeated := _repeated_note(dataset, _command_line(data, columns=columns, examples=None, data_dir=data_dir)):
        workspace.notes.append(repeated)
    numbers = seed_list(seeds)
    request = Request(
        methods=method_names(methods), seeds=numbers[:1], encoder=encoder, tune=tune, plan=plan, select=select,
        metric=metric, steps=steps, batch=batch, lr=lr, every=None if steps is None else max(1, min(25, steps // 4)),
        settings=settings or {}, baselines=baselines, tested=True,
        model=None if model is None else Path(model), model_settings=EXPERIMENT,
    )  # fmt: skip
    specs = list({str(job.spec): job.spec for job in resolve(request, workspace)}.values())
    watch.note(limit_sentence(limit, default=budget is None))
    workspace.sizes = _sample_sizes(specs, workspace)
    workspace.weight_limits = _weight_limits(specs, numbers) if combinations else {}
    workspace.keep_states = model is not None
    fixed = lr is not None or "lr" in (settings or {})
    engine = engine or default_engine(specs, steps=watch.wants_steps)
    board = Board(
        specs, numbers, workspace, limit=limit, engine=engine, watch=watch,
        search=not fixed if search_rate is None else search_rate,
    )  # fmt: skip
    reserved = partial(reserve, board, limit=limit, model=model is not None, before=limit - deadline.left())
    reserved = reserved if math.isfinite(limit) else lambda: 0.0
    workspace.deadline = deadline.earlier(reserved())
    imports = None
    for _ in work(board, workspace, watch=watch, engine=engine):
        workspace.deadline.seconds = limit - reserved()
        imports = imports or import_aside(*LATER)
    if imports is not None:
        imports.join()
    workspace.deadline = Deadline()
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
    summary, choices = summarise(records, specs[0].metric), tuple(board.choices())
    if summary.decision is not None:
        summary = summary.with_records(parallel.from_first(partial(_measured_coverage, summary, workspace)))
        summary = _with_final_rate(summary, choices)
    groups = summary.every.groups
    schedule = schedule_of(board, seconds=time.monotonic() - deadline.started, limit=limit)
    remarks = [
        *analysis_notes(summary.records, analyses),
        *failure_notes(board.failures),
        *data_notes(analyses, dataset),
        *(text for text in (schedule.note, sample_note(summary.shown.groups, len(dataset))) if text),
        *rate_notes(choices),
        *(f"{label} is not chosen: {COLLAPSED}" for label, group in groups.items() if is_collapsed(group)),
    ]
    notes = (*dataset.notes, *workspace.notes, *remarks)
    report = Path(out) / "report.html"
    if parallel.is_first():
        source += [] if not source or not isinstance(unlabelled, str | Path) else ["--unlabelled", str(unlabelled)]
        source += ["--empty-labels", empty_labels] if source and empty_labels != "error" else []
        source += ["--skip-bad"] if source and skip_bad else []
        write_report(summary, report, title=f"Holdfast: {dataset.name}", notes=notes, source=source)
    return Comparison(
        summary, report, dataset, notes, schedule, workspace.identical, choices,
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
        dataset = training_data(
            data, task=options.get("task"), columns=columns, data_dir=data_dir, examples=examples,
            unlabelled=unlabelled, empty_labels=empty_labels, settings=options, skip_bad=skip_bad,
        )  # fmt: skip
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


def failure_notes(failures: Sequence[Failure]) -> list[str]:
    """Return one sentence per method that failed, with its first cause."""
    first: dict[str, Failure] = {}
    for failure in failures:
        first.setdefault(failure.unit.name, failure)
    return [f"{name} failed ({each.episode or 'before its first run'}): {each.cause}" for name, each in first.items()]


def sample_note(groups: Groups, total: int) -> str:
    """Return a sentence on the rows that methods were trained and tested on, if these are not all."""
    sizes = {label: group[0].spec.get("rows") or total for label, group in groups.items()}
    if set(sizes.values()) <= {total}:
        return ""
    by_size: dict[int, list[str]] = {}
    for label, rows in sizes.items():
        by_size.setdefault(rows, []).append(label)
    texts = [
        f"{rows:,} rows for {', '.join(label.removesuffix(f' ({rows:,} rows)') for label in labels)}"
        for rows, labels in sorted(by_size.items())
        if rows < total
    ]
    return f"trained and tested on a stratified sample of the {total:,} rows: {'; '.join(texts)}"


def _sample_sizes(specs: Sequence[Spec], workspace: Workspace) -> tuple[int, ...]:
    """Return the numbers of rows of nested samples; all rows only for streams and where the user set a number."""
    total = len(workspace.dataset)
    spec = next((each for each in specs if each.method not in SIMPLE), specs[0])
    if spec.plan == "stream" or spec.rows or parallel.world_size() > 1:
        return (total,)
    entry, kind = catalog.lookup("encoders", spec.encoder), workspace.dataset.raw.kind
    first = first_sample(
        kind, tuned=learns(entry, spec.tune), pretrained=entry.pretrained, device=workspace.device.type,
        tokens=spec.encoder_args.get("length") or 0,
    )  # fmt: skip
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


def _repeated_note(dataset: Dataset, source: Sequence[str]) -> str:
    from holdfast.auditing.repeated import repeated_note

    return repeated_note(dataset, source) if dataset.classes else ""


def _command_line(
    data: Source, *, columns: Mapping[str, str] | None, examples: int | None, data_dir: Path | None
) -> list[str]:
    """Return the words that name the data on the command line; empty for data from memory."""
    if not isinstance(data, str | Path):
        return []
    words = [str(data), *(word for pair in (columns or {}).items() for word in ("--column", "=".join(pair)))]
    words += [] if examples is None else ["--examples", str(examples)]
    return words + ([] if data_dir is None else ["--data-dir", str(data_dir)])
