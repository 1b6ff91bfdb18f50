"""Short search of the learning rate on source domains, for the baseline and every other method alike.

For a target a, a rate is scored by training without a and without another domain b, and testing on b; neighbours in the
list of domains are such pairs, so that every target has two of these scores. If the lowest or the highest rate is best
for a target, the next one is tried too. Plans other than leave-one-out, and fewer than three domains, use the
validation scores of the run itself. No row of a target influences its rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast import catalog
from holdfast.catalog.training import learns
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.labels import settings_key
from holdfast.report.selection import train_validation
from holdfast.report.statistics import mean
from holdfast.run.budget import Allowance, Budget
from holdfast.run.execute import run_all
from holdfast.run.jobs import Engine, Job
from holdfast.run.progress import ProgressListener
from holdfast.run.resolve import Request, resolve
from holdfast.run.settings import min_domains
from holdfast.run.timing import Timing
from holdfast.run.workspace import Workspace
from holdfast.spec import Spec

STEP = 3.0  # ratio of neighbouring rates
FACTORS = (1.0, 1 / STEP, STEP)  # of the default rate; the first one wins ties
MIN_STEPS = 100  # shorter runs do not show which rate is better
MAX_STEPS = 500  # of a run of the search
ALL_DOMAINS = ""  # target of the choice for a model of all domains
SHARE = 3  # the search takes at most one third of a budget


@dataclass(frozen=True)
class RateChoice:
    """The rate that was chosen for one method and target, and the score of every rate."""

    method: str
    target: str  # name of the episode; empty for a model of all domains
    rate: float
    scores: dict[float, float]
    configuration: str = ""  # of the runs with this rate: necks may distinguish several of one method

    def json(self) -> dict[str, object]:
        """Return the form for `--json`."""
        scores = {f"{rate:g}": score for rate, score in self.scores.items()}
        return {"method": self.method, "target": self.target, "lr": self.rate, "scores": scores}


def is_searchable(spec: Spec) -> bool:
    """Whether the rate of a spec is worth a search: its encoder learns, long enough, and not on a stream."""
    entry = catalog.lookup("encoders", spec.encoder)
    simple = catalog.unwrap("methods", spec.method)[-1][1].load().full_batch
    return learns(entry, spec.tune) and not simple and spec.plan != "stream" and spec.steps >= MIN_STEPS


def search_rates(
    jobs: Sequence[Job],
    workspace: Workspace,
    *,
    watch: ProgressListener | None = None,
    engine: Engine | None = None,
    budget: Budget | None = None,
) -> tuple[list[Job], list[RateChoice]]:
    """Return the jobs with the best rate per method and target, and the choices; other jobs are unchanged.

    With a budget, rates that not every method could try within a third of it are not considered.
    """
    assert workspace.out is not None
    methods: dict[str, Spec] = {}  # of every method its first seed
    for job in jobs:
        if is_searchable(job.spec) and parallel.world_size() == 1:
            methods.setdefault(_without_seed(job.spec), job.spec)
    if not methods:
        return list(jobs), []
    folder = replace(
        workspace, out=workspace.out / "rates", analyse=(), keep_outputs=False, weight_limits={}, notes=[], identical={}
    )
    trials = _Trials(methods, folder)
    options: dict[str, Any] = {"watch": watch, "engine": engine, "budget": budget}
    trials.run([(factor, key) for factor in FACTORS for key in methods], **options)
    complete = [factor for factor in FACTORS if all(trials.ended(factor, key) for key in trials.methods)]
    targets = dict.fromkeys((_without_seed(job.spec), job.episode) for job in jobs)
    pairs = [(key, target) for key, target in [*targets, *((key, ALL_DOMAINS) for key in methods)] if key in methods]
    further = {pair: _next_factor(trials.scores(*pair, complete, workspace)) for pair in pairs}
    trials.run(list(dict.fromkeys((factor, key) for (key, _), factor in further.items() if factor)), **options)
    tried = {key: [*complete, *trials.beyond(key)] for key in trials.methods}
    choices: dict[tuple[str, str], RateChoice] = {}
    for (key, target), factor in further.items():
        spec = methods[key]
        factors = [each for each in tried[key] if each in (*complete, factor)]
        scores = {spec.lr * each: score for each, score in trials.scores(key, target, factors, workspace).items()}
        rate = max(scores, key=lambda lr: scores[lr]) if len(scores) > 1 else spec.lr
        searched = _with_rate(spec, rate, tried[key])
        choices[key, target] = RateChoice(spec.method, target, rate, scores, settings_key(searched.json(), "seed"))
    scored = [choice for choice in choices.values() if choice.scores]
    rated = []
    for job in jobs:
        choice = choices.get((_without_seed(job.spec), job.episode))
        if choice is None or not choice.scores:
            rated.append(job)
        else:
            rated.append(job.with_spec(_with_rate(job.spec, choice.rate, tried[_without_seed(job.spec)])))
    return rated, scored


class _Trials:
    """Runs that score a rate, per method and factor of its default rate; `methods` maps keys to specs."""

    def __init__(self, methods: dict[str, Spec], folder: Workspace) -> None:
        self.methods, self.folder = methods, folder
        self.jobs: dict[tuple[float, str], list[Job]] = {}
        self.records: dict[str, RunRecord] = {}
        self.diverged: set[str] = set()

    def run(self, trials: Sequence[tuple[float, str]], **options: Any) -> None:
        """Run trials of (factor, method); a method without folds is removed from `methods`."""
        for factor, key in trials:
            if key in self.methods:
                spec = self.methods[key]
                try:
                    specs = [replace(each, lr=spec.lr * factor) for each in _fold_specs(spec, self.folder)]
                    self.jobs[factor, key] = resolve(Request(specs=specs), self.folder)
                except BadInput:  # such as a label that occurs in one source only
                    self.methods.pop(key)
        jobs = [job for trial in trials if trial[1] in self.methods for job in self.jobs[trial]]
        if jobs:
            self.records |= _run(jobs, self.folder, self.diverged, **options)

    def ended(self, factor: float, key: str) -> bool:
        """Whether all runs of a trial were completed or diverged."""
        jobs = self.jobs.get((factor, key), [])
        return bool(jobs) and all(job.id in self.records or str(job.spec) in self.diverged for job in jobs)

    def beyond(self, key: str) -> list[float]:
        """Return the factors outside `FACTORS` that were tried for a method."""
        factors = {factor for factor, each in self.jobs if each == key} - set(FACTORS)
        return sorted(factor for factor in factors if self.ended(factor, key))

    def scores(self, key: str, target: str, factors: Sequence[float], workspace: Workspace) -> dict[float, float]:
        """Return the score per factor, without those of which a run diverged."""
        spec, scores = self.methods[key], {}
        unseen = _held_out(spec, target, workspace)
        for factor in factors:
            ids = [job.id for job in self.jobs[factor, key]]
            if self.records.keys() >= set(ids):
                scores[factor] = _score([self.records[id] for id in ids], spec, target, unseen)
        return {factor: score for factor, score in scores.items() if score is not None}


def _next_factor(scores: Mapping[float, float]) -> float | None:
    """Return the factor beyond the best one if that is the smallest or the largest of several, else None."""
    if len(scores) < len(FACTORS):
        return None
    best = max(scores, key=lambda factor: scores[factor])
    return best * STEP if best == max(scores) else best / STEP if best == min(scores) else None


def _held_out(spec: Spec, target: str, workspace: Workspace) -> set[str]:
    """Return the test domains of an episode, whose scores are not read; none if all domains train."""
    if spec.plan == "all" or target == ALL_DOMAINS:
        return set()
    episode = next(each for each in workspace.episodes(spec) if each.name == target)
    return {part.domain for stage in episode.stages for part in stage.test}


def _run(
    jobs: Sequence[Job], folder: Workspace, diverged: set[str], *, watch: ProgressListener | None,
    engine: Engine | None, budget: Budget | None,
) -> dict[str, RunRecord]:  # fmt: skip
    """Run the trials; return the records of those that were completed, by id, and add specs to `diverged`."""
    timing, listener = Timing(), _Searching(watch or ProgressListener())
    share = None if budget is None else Budget(max(0.0, budget.left()) / SHARE, budget.clock(), budget.clock)
    allowance = None if share is None else Allowance(share, jobs, timing)
    records = run_all(
        jobs, folder, watch=listener, engine=engine, timing=timing, allowance=allowance,
        on_divergence=lambda spec, error: diverged.add(str(spec)),
    )  # fmt: skip
    return {record.id: record for record in records}


class _Searching(ProgressListener):
    """Reports runs of the search as preparations, so that they are not counted or logged as results."""

    def __init__(self, watch: ProgressListener) -> None:
        self.encoding, self.searching = watch.encoding, watch.searching

    def begin(self, name: str, steps: int) -> None:
        self.searching(name)


def _without_seed(spec: Spec) -> str:
    return str(replace(spec, seed=0))


def _fold_specs(spec: Spec, workspace: Workspace) -> Iterator[Spec]:
    """Yield the specs of the runs that score a rate: folds without two neighbouring domains, or the run itself."""
    domains = workspace.dataset.domains
    if spec.plan == "all" and len(domains) > max(1, min_domains(spec.method)):
        yield replace(_short(spec), plan="leave-one-out", plan_args=_shares(spec))
    elif spec.plan == "leave-one-out" and len(domains) - 2 >= max(1, min_domains(spec.method)):
        targets = spec.plan_args.get("targets") or domains
        pairs = {frozenset((a, b)) for a, b in zip(domains, (*domains[1:], domains[0]), strict=True)}
        for pair in sorted(sorted(pair) for pair in pairs if pair & set(targets)):
            sources = [domain for domain in domains if domain not in pair]
            options = {"targets": pair, "sources": sources, **_shares(spec)}
            yield replace(_short(spec), plan="cross-dataset", plan_args=options)
    else:
        yield spec


def _shares(spec: Spec) -> dict[str, object]:
    return {key: value for key, value in spec.plan_args.items() if key == "valid"}


def _short(spec: Spec) -> Spec:
    """Return the spec with half the steps, at most `MAX_STEPS`, in multiples of the validation interval."""
    steps = min(spec.steps // 2, max(MAX_STEPS, spec.every))
    return replace(spec, steps=max(spec.every, steps // spec.every * spec.every), select="train-validation")


def _score(runs: Sequence[RunRecord], spec: Spec, target: str, unseen: set[str]) -> float | None:
    """Return the mean score of a rate for an episode, higher is better; without a target over all domains.

    Folds count if they hold out all `unseen` domains, and only by their scores on other domains.
    """
    sign = -1 if spec.metric in LOWER_IS_BETTER else 1
    if all(run.spec["plan"] == spec.plan for run in runs):  # no folds: the runs themselves
        return mean(train_validation(run) for run in runs if target in (ALL_DOMAINS, run.episode))
    tests = [run.stages[-1]["test"] for run in runs if unseen <= set(run.stages[-1]["test"])]
    average = mean(values.get(spec.metric) for scores in tests for name, values in scores.items() if name not in unseen)
    return None if average is None else sign * average


def _with_rate(spec: Spec, rate: float, factors: Sequence[float]) -> Spec:
    """Return a spec with the chosen rate, and the list of those that were tried."""
    return replace(spec, lr=rate, searched={"lr": sorted(round(spec.lr * factor, 12) for factor in factors)})


def final_rates(choices: Iterable[RateChoice]) -> dict[str, float]:
    """Map configuration to the rate for a model of all domains."""
    return {choice.configuration: choice.rate for choice in choices if choice.target == ALL_DOMAINS}


def rate_of_fit(
    request: Request, workspace: Workspace, *, watch: ProgressListener | None = None, budget: Budget | None = None
) -> RateChoice | None:
    """Return the rate for a model of all domains, by leaving out one domain at a time; None without a search."""
    jobs = resolve(request, workspace)
    _, choices = search_rates(jobs, workspace, watch=watch, budget=budget)
    return next((choice for choice in choices if choice.target == ALL_DOMAINS), None)


def rate_notes(choices: Sequence[RateChoice]) -> list[str]:
    """Return one sentence with the rates per method."""
    by_method: dict[str, dict[str, list[str]]] = {}
    for choice in choices:
        if not choice.target:
            continue
        by_method.setdefault(choice.method, {}).setdefault(f"{choice.rate:g}", []).append(choice.target)
    texts = []
    for method, rates in by_method.items():
        chosen = [rate if len(rates) == 1 else f"{rate} ({', '.join(targets)})" for rate, targets in rates.items()]
        texts.append(f"{method} {', '.join(chosen)}")
    return [f"learning rates chosen on source domains: {'; '.join(texts)}"] if texts else []
