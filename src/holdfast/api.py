"""Compare methods on data with several domains, and train a model with the chosen method."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder
from holdfast.core.stopping import Deadline, TimeUp, format_seconds, parse_duration, until
from holdfast.data.dataset import Dataset
from holdfast.data.part_locations import unmatched_note
from holdfast.data.readers.memory import Source
from holdfast.data.sampling import sample_sizes
from holdfast.data.splits import drop_test_domains
from holdfast.defaults import LIMIT, first_sample
from holdfast.engines.local import Local
from holdfast.record import LOWER_IS_BETTER, RunRecord, read
from holdfast.report.engagement import engagement_table
from holdfast.report.explain import explain
from holdfast.report.labels import BASELINE, COMBINED, SIMPLE, SOUP, grouped, is_collapsed, settings_key
from holdfast.report.page import write_report
from holdfast.report.significance import Decision, decide
from holdfast.report.table import flat_table
from holdfast.run.analyses import analysis_notes, choose_analyses
from holdfast.run.jobs import Engine
from holdfast.run.progress import ProgressListener
from holdfast.run.resolve import EXPERIMENT, Request, method_names, resolve, seed_list
from holdfast.run.workspace import Workspace, choose_device, training_data
from holdfast.spec import Spec
from holdfast.train.board import (
    ALL_DOMAINS,
    Board,
    Failure,
    RateChoice,
    final_rates,
    is_searchable,
    rate_notes,
    score_of,
)
from holdfast.train.queue import FACTORS
from holdfast.train.schedule import (
    MODEL_FACTOR,
    Schedule,
    default_engine,
    limit_sentence,
    longest_run,
    reserve,
    schedule_of,
)
from holdfast.train.work import work

if TYPE_CHECKING:
    from holdfast.estimator import DomainClassifier
    from holdfast.models.left_out import CollectedRuns

WEIGHT_BYTES = 2 << 30  # that runs may store for soups: all together, and once more those of the baseline
EPISODES = 5  # of a comparison, about
SAVE_SECONDS = 1.0  # for writing a model folder
COLLAPSED = "at most half of the classes are still predicted for unlabelled examples, so that its adaptation is refused"
# settings in which a model of all domains may differ from the runs that were compared
MODEL_SETTINGS = ("searched", "rows", "plan", "plan_args", "select", "seed", "precision", "processes")


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison: the records, the metric of its table, the report, the chosen method and remarks."""

    records: list[RunRecord]
    metric: str
    report: Path
    dataset: Dataset
    decision: Decision | None  # None if no method finished all target domains
    notes: tuple[str, ...] = ()
    schedule: Schedule | None = None  # time, and what a budget left out
    identical: Mapping[str, str] = field(default_factory=dict)  # method that was not run -> the one it is identical to
    rates: tuple[RateChoice, ...] = ()  # learning rates that a search chose, and the scores of all
    failures: tuple[Failure, ...] = ()  # runs that failed, and why
    deadline: Deadline = field(default_factory=Deadline)  # of the comparison, the final model included

    def table(self) -> list[dict[str, Any]]:
        """Return one dict per cell: method, target, metric, mean, stderr, n."""
        return flat_table(self.records, self.metric)

    def engagement(self) -> list[dict[str, Any]]:
        """Return one dict per method and mechanism: share of predictions that depend on it, range, state, ..."""
        return engagement_table(self.records)

    @property
    def explanation(self) -> str:
        """The choice in two plain sentences, and what was not tried; empty without a choice."""
        return "" if self.decision is None else explain(self.records, self.metric, self.decision)

    @property
    def why_no_model(self) -> str | None:
        """The reason why `refit` cannot train a model, or None if it can."""
        if self.decision is None:
            return "no model was saved: no method finished all target domains"
        if self.decision.spec["plan"] == "stream":
            return (
                "no model was saved: the plan was a stream; train a model with fit and continue with adapt, one domain "
                "at a time"
            )
        return None


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
    watch.note(limit_sentence(limit, default=budget is None))
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
    workspace.sizes = _sample_sizes(specs, workspace)
    workspace.weight_limits = _weight_limits(specs, numbers) if combinations else {}
    workspace.keep_states = model is not None
    fixed = lr is not None or "lr" in (settings or {})
    engine = engine or default_engine(specs)
    workers = engine.workers(workspace.device) if isinstance(engine, Local) else 1
    board = Board(
        specs, numbers, workspace, limit=limit, workers=workers, watch=watch,
        search=not fixed if search_rate is None else search_rate,
    )  # fmt: skip
    workspace.deadline = deadline.earlier(reserve(board, limit=limit, model=model is not None))
    for _ in work(board, workspace, watch=watch, engine=engine):
        workspace.deadline.seconds = limit - reserve(board, limit=limit, model=model is not None)
    workspace.deadline = Deadline()
    records = board.results()
    if not records:
        causes = "; ".join(dict.fromkeys(failure.cause for failure in board.failures))
        raise NothingFinished(f"no run was completed within {format_seconds(limit)}{causes and f': {causes}'}")
    if combinations:
        records += parallel.from_first(partial(_combined, records, workspace))
    metric, report = specs[0].metric, Path(out) / "report.html"
    decision, choices = decide(records, metric), tuple(board.choices())
    if decision is not None:
        records = parallel.from_first(partial(_with_coverage, records, decision, workspace))
        decision = _with_final_rate(decision, choices)
    schedule = schedule_of(board, seconds=time.monotonic() - deadline.started, limit=limit)
    unmatched = unmatched_note(dataset.raw, dataset.ids) if "expert-parts" in analyses else ""
    remarks = [
        *analysis_notes(records, analyses),
        *failure_notes(board.failures),
        *(text for text in (unmatched, schedule.note, sample_note(records, len(dataset))) if text),
        *rate_notes(choices),
        *(f"{label} is not chosen: {COLLAPSED}" for label, group in grouped(records).items() if is_collapsed(group)),
    ]
    notes = (*dataset.notes, *workspace.notes, *remarks)
    if parallel.is_first():
        source += [] if not source or not isinstance(unlabelled, str | Path) else ["--unlabelled", str(unlabelled)]
        source += ["--empty-labels", empty_labels] if source and empty_labels != "error" else []
        source += ["--skip-bad"] if source and skip_bad else []
        write_report(records, report, title=f"Holdfast: {dataset.name}", metric=metric, notes=notes, source=source)
    return Comparison(
        records, metric, report, dataset, decision, notes, schedule, workspace.identical, choices,
        tuple(board.failures), deadline,
    )  # fmt: skip


class NothingFinished(Exception):
    """No run of a comparison was completed, so that there is nothing to compare."""


def failure_notes(failures: Sequence[Failure]) -> list[str]:
    """Return one sentence per method that failed, with its first cause."""
    first: dict[str, Failure] = {}
    for failure in failures:
        first.setdefault(failure.unit.name, failure)
    return [f"{name} failed ({each.episode or 'before its first run'}): {each.cause}" for name, each in first.items()]


def sample_note(records: Sequence[RunRecord], total: int) -> str:
    """Return a sentence on the rows that methods were trained and tested on, if these are not all."""
    sizes = {label: group[0].spec.get("rows") or total for label, group in grouped(records).items()}
    if set(sizes.values()) <= {total}:
        return ""
    by_size: dict[int, list[str]] = {}
    for label, rows in sizes.items():
        by_size.setdefault(rows, []).append(label)
    texts = [f"{rows:,} rows: {', '.join(labels)}" for rows, labels in sorted(by_size.items()) if rows < total]
    return f"trained and tested on a stratified sample of the {total:,} rows: {'; '.join(texts)}"


def _sample_sizes(specs: Sequence[Spec], workspace: Workspace) -> tuple[int, ...]:
    """Return the numbers of rows of nested samples; all rows only for streams and where the user set a number."""
    total = len(workspace.dataset)
    spec = next((each for each in specs if each.method not in SIMPLE), specs[0])
    if spec.plan == "stream" or spec.rows or parallel.world_size() > 1:
        return (total,)
    kind = workspace.dataset.raw.kind
    return sample_sizes(total, first_sample(spec, kind, workspace.device))


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


def _with_final_rate(decision: Decision, choices: Sequence[RateChoice]) -> Decision:
    """Give the chosen method the rate that is best over all domains, which a model of all domains uses."""
    if "searched" not in decision.spec:
        return decision
    rate = final_rates(choices).get(settings_key(decision.spec, "seed"), decision.spec["lr"])
    return replace(decision, spec={**decision.spec, "lr": rate})


def _combined(records: list[RunRecord], workspace: Workspace) -> list[RunRecord]:
    """Combine finished runs and save the records of the combinations."""
    from holdfast.models.combine import combine  # imports scipy.optimize and scikit-learn, which take a second

    assert workspace.out is not None
    combined = combine(records, workspace)
    for record in combined:
        record.save(workspace.out / "records")
    return combined


def _with_coverage(records: list[RunRecord], decision: Decision, workspace: Workspace) -> list[RunRecord]:
    """Add the coverage of prediction sets on left-out domains to the records of the choice, and save these."""
    from holdfast.models.conformal import with_coverage
    from holdfast.models.left_out import collect

    assert workspace.out is not None
    chosen, own = grouped(records)[decision.label], workspace.sampled(decision.spec.get("rows") or 0)
    runs = collect(chosen, {record.id: record for record in records}, own)
    measured = {} if runs is None else {r.id: r for r in with_coverage(chosen, runs.sample(None))}
    for record in records:
        if record.id in measured and measured[record.id].stages != record.stages:
            measured[record.id].save(workspace.out / "records")
    return [measured.get(record.id, record) for record in records]


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


def refit(
    done: Comparison,
    folder: str | Path,
    *,
    device: str = "auto",
    cache: bool = True,
    watch: ProgressListener | None = None,
) -> Path:
    """Train the method that a comparison chose on all domains and save it; a folder with that model is kept.

    If the time that its own runs took is not left, or the training does not end in time, the models of its finished
    runs are saved as an ensemble instead.
    """
    from holdfast.models.combine import final_members
    from holdfast.models.saved import check_folder

    folder, reason = Path(folder), done.why_no_model
    if reason is not None or done.decision is None:
        raise BadInput(reason or "no method was chosen")
    spec, chosen = done.decision.spec, grouped(done.records)[done.decision.label]
    workspace = Workspace(done.dataset, out=done.report.parent).sampled(spec.get("rows") or 0)
    dataset = drop_test_domains(workspace.dataset)
    members = [(spec, 1.0)]
    if spec["method"] in COMBINED:
        members = final_members(done.records, chosen, rates=final_rates(done.rates))
    is_soup = spec["method"] == SOUP
    if parallel.from_first(partial(_is_model_of, folder, members, dataset.fingerprint, is_soup=is_soup)):
        return folder
    check_folder(folder)
    known = {record.id: record for record in done.records}
    runs = [known[member["id"]] for record in chosen for member in record.stages[-1].get("members", [])] or chosen
    needed = MODEL_FACTOR * len(members) * longest_run(runs)
    options = {"device": device, "cache": cache, "watch": watch}
    deadline = done.deadline.earlier(SAVE_SECONDS)
    if parallel.world_size() > 1 or needed < deadline.left():
        try:
            with until(deadline):
                _train_members(members, dataset, folder, _left_out_runs(done, done.decision), options, soup=is_soup)
            return folder
        except TimeUp:
            shutil.rmtree(_drafts(folder), ignore_errors=True)
    _save_finished(done, runs, folder, options)
    return folder


def _drafts(folder: Path) -> Path:
    """Return the folder of the members of an ensemble in training."""
    return folder.with_name(f"{folder.name}-members")


def _train_members(
    members: Sequence[tuple[dict[str, Any], float]], dataset: Dataset, folder: Path, runs: CollectedRuns | None,
    options: Mapping[str, Any], *, soup: bool,
) -> None:  # fmt: skip
    """Train every member on all domains, and save the model, the soup or the ensemble of them."""
    from holdfast.models.saved import Member, load_model

    if len(members) == 1:
        _train_member(members[0][0], dataset, folder, runs=runs, **options)
        return
    drafts, models = _drafts(folder), []
    for number, (own, _) in enumerate(members):
        draft = drafts / str(number)
        if not parallel.from_first(partial(_is_model_of, draft, [(own, 1.0)], dataset.fingerprint)):
            _train_member(own, dataset, draft, runs=runs, **options)
        models.append(draft)
    if parallel.is_first():
        first, *others = (load_model(draft) for draft in models)
        if soup:
            from holdfast.models.soup import fit_soup

            cache_path = cache_folder() if options["cache"] else None
            model = fit_soup([first, *others], dataset, device=choose_device(options["device"]), cache=cache_path)
        else:
            weights = [weight for _, weight in members[1:]]
            others = [replace(other, left_out=None) for other in others]
            model = replace(first, members=tuple(map(Member, weights, others)))
        model.save(folder)
        shutil.rmtree(drafts)


def _save_finished(done: Comparison, runs: Sequence[RunRecord], folder: Path, options: Mapping[str, Any]) -> None:
    """Save the models of finished runs as an ensemble; each of them has not seen some of the domains."""
    from holdfast.models.finished import ensemble_of_runs

    watch = options["watch"] or ProgressListener()
    watch.note(
        "there is no time left to train the model on all domains: the models of the finished runs, which left out one "
        "domain each, are saved as an ensemble; the same command with a larger --budget trains it"
    )
    device = choose_device(options["device"])
    workspace = Workspace(
        done.dataset, device, cache_folder() if options["cache"] else None, out=done.report.parent
    ).sampled(runs[0].spec.get("rows") or 0)
    model = ensemble_of_runs(runs, workspace)
    if model is None:
        raise BadInput(
            "no model was saved: the time is up, and the finished runs are too large to be stored; run the same "
            "command with a larger --budget"
        )
    if parallel.is_first():
        model.save(folder)


def fit_with_rates(
    make: Callable[[float | None], DomainClassifier], dataset: Dataset, folder: Path, *, search: bool,
    budget: str | None = None, started: float | None = None, watch: ProgressListener | None = None,
) -> tuple[DomainClassifier, RateChoice | None]:  # fmt: skip
    """Train a model at the default rate and save it; while time remains, replace it by one at a better rate.

    `make` returns an estimator with a rate, None for the default one. Validation rows decide. Without a budget, the
    first training is not limited, and other rates are tried as long as they end within `defaults.LIMIT`.
    """
    watch = watch or ProgressListener()
    limit = LIMIT if budget is None else parse_duration(budget)
    deadline = Deadline(limit, started=started)
    first, began = make(None), time.monotonic()
    with until(Deadline() if budget is None else deadline):
        try:
            first.fit_dataset(dataset, folder=folder, watch=watch)
        except TimeUp:
            raise BadInput(
                f"the training did not end within {format_seconds(limit)}: the same command with a larger --budget "
                "continues, or use fewer --steps or --examples"
            ) from None
    took, spec = time.monotonic() - began, Spec(**first.record_.spec)
    if not search or not is_searchable(spec) or parallel.world_size() > 1:
        return first, None
    best, scores = first, {spec.lr: score_of(first.record_)}
    drafts = folder.with_name(f"{folder.name}-rates")
    for factor in FACTORS:
        if MODEL_FACTOR * took > deadline.left():
            break
        rate = spec.lr * factor
        try:
            with until(deadline):
                other = make(rate).fit_dataset(dataset, folder=drafts / f"{rate:g}", watch=watch)
        except TimeUp:
            break
        except BadInput as error:
            watch.note(f"learning rate {rate:g}: {error}")
            continue
        scores[rate] = score_of(other.record_)
        best = other if scores[rate] > scores[float(best.record_.spec["lr"])] else best
    if best is not first:
        best.save_pretrained(folder)
    shutil.rmtree(drafts, ignore_errors=True)
    sign = -1 if spec.metric in LOWER_IS_BETTER else 1
    rate = float(best.record_.spec["lr"])
    return best, RateChoice(spec.method, ALL_DOMAINS, rate, {lr: sign * score for lr, score in scores.items()})


def _left_out_runs(done: Comparison, decision: Decision) -> CollectedRuns | None:
    """Return the outputs of the chosen runs for the domains that they left out; None if they were not stored."""
    from holdfast.models.left_out import collect

    rows = decision.spec.get("rows") or 0
    workspace = Workspace(done.dataset, out=done.report.parent).sampled(rows)
    return collect(grouped(done.records)[decision.label], {record.id: record for record in done.records}, workspace)


def _train_member(
    spec: Mapping[str, Any], dataset: Dataset, folder: Path, *, device: str, cache: bool,
    watch: ProgressListener | None, runs: CollectedRuns | None,
) -> None:  # fmt: skip
    """Train one configuration on all domains and save it with the outputs of the runs that left out a domain."""
    from holdfast.estimator import DomainClassifier  # imports scikit-learn, which takes a second

    classifier = DomainClassifier.from_spec(spec, without=MODEL_SETTINGS, device=device, cache=cache)
    classifier.fit_dataset(dataset, folder=folder, watch=watch, agrees=EXPERIMENT, runs=runs)


def _is_model_of(
    folder: Path, members: Sequence[tuple[Mapping[str, Any], float]], fingerprint: str, *, is_soup: bool = False
) -> bool:
    """Whether a folder contains a finished model with these members and settings, or the soup of the members."""
    if not (folder / "config.json").is_file():
        return False
    folders = [folder, *sorted((folder / "members").glob("*"), key=lambda path: int(path.name))]
    try:
        records = [read(each / "record.json") for each in folders]
    except BadInput:  # missing or damaged
        return False
    specs = [record.spec for record in records]
    wanted = [{**spec, "fingerprint": fingerprint} for spec, _ in members]
    averaged = records[0].analysis.get("soup", {}).get("seeds")
    if averaged != ([spec["seed"] for spec in wanted] if is_soup else None):
        return False
    wanted = wanted[:1] if is_soup else wanted
    return len(specs) == len(wanted) and all(
        spec.get(key) == value
        for spec, expected in zip(specs, wanted, strict=True)
        for key, value in expected.items()
        if key not in MODEL_SETTINGS
    )
