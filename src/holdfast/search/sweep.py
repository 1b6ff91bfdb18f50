"""Hyperparameter search per method, decided by validation scores only; writes a report and one config per method.

Trials are worked off one number after another, trial 0 of all methods first, until the time is up. Only trials with all
runs are compared.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import BadInput, NothingFinished
from holdfast.core.files import cache_folder, write_text
from holdfast.core.settings import keywords_of
from holdfast.core.stopping import format_seconds
from holdfast.data.readers.in_memory import Source
from holdfast.defaults import FEW_DOMAINS
from holdfast.engines.work import default_engine, run_all
from holdfast.record import LOWER_IS_BETTER, RunRecord, paths, run_id
from holdfast.report.page import write_report
from holdfast.search.space import make_sampler, space_of
from holdfast.spec import Spec
from holdfast.stats.selection import CRITERIA, Choice, choose, overall, trial
from holdfast.stats.summary import Summary, summarise
from holdfast.stats.table import flat_table
from holdfast.train.comparison import REPORT_SHARE, limit_sentence, time_limit
from holdfast.train.plan import MIN_ROWS, Episode
from holdfast.train.progress import Forwarding, ProgressListener
from holdfast.train.resolve import (
    EXPERIMENT,
    ManyRuns,
    Request,
    check_records,
    choose_methods,
    method_names,
    resolve,
    seed_list,
)
from holdfast.train.run import Engine, Failed, Job
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace, choose_device

NOT_IN_CONFIG = ("data", "fingerprint", "seed", "plan", "plan_args", "select", "precision")
FOLDS = "leave-one-domain-out"
REPORT_SECONDS = 2.0  # for the report, and a share of the limit


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration of one method: its number, the settings drawn for it, and the resulting spec."""

    number: int
    drawn: dict[str, Any]
    spec: Spec

    @property
    def key(self) -> str:
        return trial(self.spec.json())


@dataclass(frozen=True)
class Sweep:
    """Result of a search: the chosen run per method, target and seed, and the best configuration per method."""

    chosen: list[Choice]
    trials: dict[str, Trial]  # by the key that a choice names
    searched: tuple[str, ...]  # the settings in which trials differ
    select: str
    metric: str
    best: dict[str, Path]  # method -> a file for `--config`
    report: Path
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> list[RunRecord]:
        """The chosen runs as they were recorded."""
        return [choice.run for choice in self.chosen]

    @cached_property
    def summary(self) -> Summary:
        """Findings of the chosen runs without the searched settings, so that a table has one row per method."""
        runs = [replace(choice.run, spec=self._without_searched(choice.run.spec)) for choice in self.chosen]
        return summarise(runs, self.metric)

    def table(self) -> list[dict[str, Any]]:
        """Return one dict per cell: method, target, metric, mean, stderr, n."""
        return flat_table(self.summary.every)

    def choices(self) -> list[dict[str, Any]]:
        """Return the chosen trial per method, episode and seed, with its validation score."""
        sign = -1 if self.metric in LOWER_IS_BETTER else 1
        return [
            {
                "method": choice.method,
                "episode": choice.episode,
                "seed": choice.seed,
                "trial": self.trials[choice.trial].number,
                "settings": self.trials[choice.trial].drawn,
                "validation": sign * choice.score,
                "record": choice.run.id,
            }
            for choice in self.chosen
        ]

    def _without_searched(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        rest = {key: dict(value) if isinstance(value, dict) else value for key, value in spec.items()}
        for key in self.searched:
            group, dot, name = key.partition(".")
            (rest.get(f"{group}_args", {}) if dot else rest).pop(name if dot else key, None)
        return rest | {"select": self.select, "trials": 1 + max(each.number for each in self.trials.values())}


@dataclass(kw_only=True, eq=False)
class SweepOptions(ManyRuns):
    """Options of a search. Settings that the caller passes are fixed and not searched."""

    methods: str | Sequence[str | type] = ("all",)
    out: str | Path = "runs/sweep"
    trials: int = 20  # per method; trial 0 has the default settings
    sampler: str = "random"  # or optuna


@keywords_of(SweepOptions)
def sweep(data: Source, options: SweepOptions) -> Sweep:
    """Run the trials of all methods: trial 0 has the default settings, the others are drawn.

    Settings that the caller passes are fixed and not searched. `budget` and `started` are those of `compare`: when the
    time is up, the trials that have finished are compared. With `skip_bad`, rows with bad cells are left out.
    """
    watch, out, trials, steps = options.watch or ProgressListener(), Path(options.out), options.trials, options.steps
    deadline = time_limit(options.budget, options.started, watch)
    limit = deadline.seconds
    if trials < 1:
        raise BadInput(f"--trials must be at least 1, got {trials}: trial 0 has the default settings")
    make_sampler(options.sampler, {})  # an unknown name or a missing package is reported before the data is read
    dataset = options.load(data, options.settings)
    workspace = Workspace(dataset, choose_device(options.device), cache_folder() if options.cache else None, out=out)
    names, numbers = method_names(options.methods), seed_list(options.seeds)
    if not numbers or not names:
        raise BadInput("nothing to run: give at least one seed and one method")
    if any("+" in name for name in names):
        raise BadInput("a sweep takes method names without a neck: set the neck with --set neck=NAME")
    fixed = {"steps": steps, "batch": options.batch, "lr": options.lr, **(options.settings or {})}
    fixed = {key: value for key, value in fixed.items() if value is not None}
    length = {} if steps is None else {"every": max(1, min(25, steps // 4))}

    def make_trial(name: str | None, number: int, drawn: dict[str, Any]) -> Trial:
        spec = make_spec(
            dataset, encoder=options.encoder, tune=options.tune, settings={**length, **fixed, **drawn},
            device=workspace.device, method=name, plan=options.plan, select=options.select, metric=options.metric,
        )  # fmt: skip
        return Trial(number, drawn, spec)

    first = make_trial(None if names[0] in ("all", "auto") else names[0], 0, {}).spec
    if "steps" not in fixed:  # the default depends on the batch size, which is searched
        length |= {name: getattr(first, name) for name in ("steps", "every", "patience")}
    _check_folds(first, workspace)
    if any(out.glob("best-*.json")):
        check_records(out, paths(out), first, EXPERIMENT)
    names = choose_methods(names, first, workspace)
    spaces = {name: space_of(make_trial(name, 0, {}).spec, fixed) for name in names}
    samplers = {name: make_sampler(options.sampler, space) for name, space in spaces.items()}
    engine = options.engine or default_engine([make_trial(name, 0, {}).spec for name in names], steps=watch.wants_steps)
    watch.note(limit_sentence(limit, default=options.budget is None))
    if math.isfinite(limit):
        workspace.deadline = deadline.earlier(min(REPORT_SECONDS + REPORT_SHARE * limit, limit / 2))
    rounds = [list(range(trials))] if options.sampler == "random" else [[number] for number in range(trials)]
    search = Search(workspace, numbers, first.select, watch=_StartOnce(watch, len(rounds)), engine=engine)
    for batch_of_trials in rounds:
        if search.trials and workspace.deadline.passed():
            break
        pairs = [(name, number) for number in batch_of_trials for name in names]
        proposed = [make_trial(name, number, samplers[name].ask(number) if number else {}) for name, number in pairs]
        search.run(proposed)
        for each, score in zip(proposed, search.scores(proposed), strict=True):
            samplers[each.spec.method].tell(each.number, score)
    searched = tuple(dict.fromkeys(key for space in spaces.values() for key in space))
    return _finish(search, names, searched, f"Holdfast: {dataset.name}", wanted=trials * len(names), limit=limit)


def _finish(
    search: Search, names: Sequence[str], searched: tuple[str, ...], title: str, *, wanted: int, limit: float
) -> Sweep:
    """Choose the best of the complete trials, and write the report and one config file per method."""
    best, out, complete = search.best(), search.out, search.complete()
    missing = [name for name in names if name not in best]
    failed = {search.trials[key].spec.method for key in search.failures}
    if not best:
        if set(names) <= failed:
            raise BadInput(f"every trial of {names[0]} failed: lower --lr, or use --set clip=1")
        raise NothingFinished(f"no trial was completed within {format_seconds(limit)}: use a larger --budget")
    names = [name for name in names if name in best]
    chosen = choose(chain.from_iterable(complete.values()), CRITERIA[search.select], search.folds)
    counts = {name: sum(search.trials[key].spec.method == name for key in complete) for name in names}
    fewest, most = min(counts.values()), max(counts.values())
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    notes = [f"scores are of the best of {count} trials by {search.select}, chosen per target and seed"]
    notes += [f"every trial of {name} failed" for name in missing if name in failed]
    if late := [name for name in missing if name not in failed]:
        notes.append(f"no trial was completed within {format_seconds(limit)}: {', '.join(late)}")
    if search.unfinished and not late:
        notes.append(
            f"{search.unfinished} of {wanted} trials were not completed within {format_seconds(limit)}; the same "
            "command with a larger --budget continues"
        )
    for name in names:
        settings = ", ".join(f"{key}={value}" for key, value in best[name].drawn.items()) or "the defaults"
        notes.append(f"{name}: trial {best[name].number} is best over all targets and seeds ({settings})")
    result = Sweep(
        chosen, search.trials, searched, search.select, best[names[0]].spec.metric,
        {name: _write_config(best[name].spec, out) for name in names}, out / "report.html",
        (*search.workspace.dataset.notes, *search.workspace.notes, *notes, *search.failures.values()),
    )  # fmt: skip
    write_report(result.summary, result.report, title=title, notes=result.notes)
    return result


def _write_config(spec: Spec, out: Path) -> Path:
    """Write a file for `--config`: all settings of a spec except those of the data, the plan and the machine."""
    config: dict[str, Any] = {"average": spec.average, "decay": spec.decay}  # a record omits some values of these
    for key, value in spec.json().items():
        group, args, _ = key.partition("_args")
        if key not in NOT_IN_CONFIG:
            config |= {f"{group}.{name}": each for name, each in value.items()} if args else {key: value}
    name = re.sub(r"[^\w.+-]+", "-", spec.method).strip("-")
    return write_text(out / f"best-{name}.json", json.dumps(config, indent=1) + "\n")


class _StartOnce(Forwarding):
    """Reports the number of runs of all rounds when the first round starts."""

    def __init__(self, watch: ProgressListener, rounds: int) -> None:
        super().__init__(watch)
        self.rounds, self.started = rounds, False

    def start(self, total: int, finished: int) -> None:
        if not self.started:
            self.watch.start(total * self.rounds, finished)
        self.started = True


class Search:
    """The trials of a search and their runs."""

    def __init__(
        self, workspace: Workspace, seeds: Sequence[int], select: str, *, watch: ProgressListener,
        engine: Engine | None = None,
    ) -> None:  # fmt: skip
        assert workspace.out is not None
        self.workspace, self.out, self.seeds, self.select = workspace, workspace.out, seeds, select
        self.watch, self.engine = watch, engine
        self.trials: dict[str, Trial] = {}  # by key; of equal trials the first
        self.runs: dict[str, list[RunRecord]] = {}  # by trial
        self.folds: list[RunRecord] = []  # runs that leave out two domains, for leave-one-domain-out
        self.failures: dict[str, str] = {}  # key -> error of a diverged trial
        self.expected: dict[str, int] = {}  # runs per trial, without those that leave out more domains

    def run(self, trials: Sequence[Trial]) -> None:
        """Run new trials together; trials that diverge are written down and skipped from then on."""
        specs = []
        for each in trials:
            if self.trials.setdefault(each.key, each) is each:
                specs += [spec for seed in self.seeds for spec in self._with_folds(replace(each.spec, seed=seed))]
        specs = [spec for spec in specs if not self._has_failed(spec)]
        jobs = resolve(Request(specs=specs), self.workspace) if specs else []
        for key, fold in ((trial(job.spec.json()), self._is_fold(job.spec.plan)) for job in jobs):
            self.expected[key] = self.expected.get(key, 0) + (not fold)
        for record in run_all(
            jobs, self.workspace, watch=self.watch, engine=self.engine, on_failure=self._write_failure
        ):
            group = self.folds if self._is_fold(record.spec["plan"]) else self.runs.setdefault(trial(record.spec), [])
            group.append(record)

    def _is_fold(self, plan: str) -> bool:
        return self.select == FOLDS and plan == "cross-dataset"

    def complete(self) -> dict[str, list[RunRecord]]:
        """Return the runs per trial of the trials of which all runs have a score."""
        criterion, finished = CRITERIA[self.select], {}
        for key, count in self.expected.items():
            runs = self.runs.get(key, [])
            if key not in self.failures and sum(criterion(run, self.folds) is not None for run in runs) == count:
                finished[key] = runs
        return finished

    @property
    def unfinished(self) -> int:
        """The number of trials that lack runs although none failed."""
        return len(self.expected.keys() - self.complete().keys() - self.failures.keys())

    def overall(self, runs: Iterable[RunRecord]) -> dict[str, tuple[str, float]]:
        """Map method to its best trial over all episodes and seeds, and its mean validation score, higher is better."""
        return overall(list(runs), CRITERIA[self.select], self.folds)

    def scores(self, trials: Sequence[Trial]) -> list[float | None]:
        """Return the mean validation score per trial over episodes and seeds, higher is better; None if it failed."""
        complete = self.complete()
        best = [self.overall(complete.get(each.key, ())).get(each.spec.method) for each in trials]
        return [None if each is None else each[1] for each in best]

    def best(self) -> dict[str, Trial]:
        """Return the best trial per method over all episodes and seeds."""
        runs = chain.from_iterable(self.complete().values())
        return {method: self.trials[key] for method, (key, _) in self.overall(runs).items()}

    def _with_folds(self, spec: Spec) -> Iterator[Spec]:
        """Yield the spec, and for leave-one-domain-out the specs that leave out a second domain or group of domains."""
        if self.select != FOLDS:
            yield spec
            return
        spec = replace(spec, select="train-validation")
        yield spec
        dataset, share = self.workspace.dataset, {k: v for k, v in spec.plan_args.items() if k == "valid"}
        left_out = [_held_out(episode, dataset.domains) for episode in self.workspace.episodes(spec)]
        trained = [name for name in dataset.domains if not any(name in group for group in left_out)]
        # small domains of both groups would be scored together, so that each group has a run of its own
        pooled = len(dataset.domains) > FEW_DOMAINS and np.bincount(dataset.domain).min() < MIN_ROWS
        for first, second in combinations([*left_out, *([name] for name in trained)], 2):
            if first[0] in trained:
                continue  # neither is a target
            rest = [name for name in dataset.domains if name not in (*first, *second)]
            for targets in [second, first] if pooled else [[*first, *second]]:
                yield replace(spec, plan="cross-dataset", plan_args={"targets": targets, "sources": rest} | share)

    def _write_failure(self, job: Job, failed: Failed) -> None:
        spec, error = job.spec, failed.cause
        number = self.trials[trial(spec.json())].number
        write_text(self._failure_path(spec), f"{spec.method}, trial {number}, seed {spec.seed} is left out: {error}")
        self._has_failed(spec)

    def _has_failed(self, spec: Spec) -> bool:
        """Whether this spec diverged, now or in an earlier search in this folder."""
        path = self._failure_path(spec)
        if path.exists():
            self.failures[trial(spec.json())] = path.read_text(encoding="utf-8")
        return path.exists()

    def _failure_path(self, spec: Spec) -> Path:
        return self.out / "diverged" / f"{run_id(spec.json(), 'diverged')}.txt"


def _held_out(episode: Episode, domains: Sequence[str]) -> list[str]:
    """Return the domains that an episode does not train on."""
    trained = {part.domain for part in episode.stages[0].train}
    return [name for name in domains if name not in trained]


def _check_folds(spec: Spec, workspace: Workspace) -> None:
    """Raise if leave-one-domain-out cannot leave out a second domain."""
    domains = workspace.dataset.domains
    groups = {"leave-one-out": len(domains), "leave-groups-out": min(len(domains), spec.plan_args.get("folds", 5))}
    if spec.select == FOLDS and groups.get(spec.plan, 0) < 3:
        have = f"the plan is {spec.plan} and the data has {len(domains)} domains: use --select train-validation"
        need = "--plan leave-one-out or leave-groups-out and at least 3 domains or groups"
        raise BadInput(f"a sweep with --select {FOLDS} needs {need}, but {have}")
