"""Connects the order of work with its runs: which jobs a unit has, and what has finished, failed or stopped."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.defaults import default_length, fewest_of_sample, learns
from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.spec import Spec
from holdfast.stats.labels import BASELINE, CONSTANT, SIMPLE, settings_key
from holdfast.stats.selection import train_validation
from holdfast.train import queue
from holdfast.train.assemble import encodes
from holdfast.train.progress import ProgressListener
from holdfast.train.queue import CHOSEN, Candidate, Finished, Unit, best_factors, next_units
from holdfast.train.resolve import check_episode
from holdfast.train.run import Engine, Failed, Job, Outcome, full_method_name, outputs_path, state_path, weights_path
from holdfast.train.workspace import Workspace

MIN_STEPS = 100  # shorter runs do not show which rate is better
ALL_DOMAINS = ""  # target of the choice for a model of all domains


@dataclass(frozen=True)
class Failure:
    """A run that failed, and why."""

    unit: Unit
    episode: str
    cause: str
    kind: str

    def json(self) -> dict[str, object]:
        """Return the form for `--json`."""
        return {"method": self.unit.name, "seed": self.unit.seed, "episode": self.episode, "cause": self.cause}


@dataclass(frozen=True)
class RateChoice:
    """The rate that was chosen for one method and target, and the validation score of every rate."""

    method: str
    target: str  # name of the episode; empty for a model of all domains
    rate: float
    scores: dict[float, float]
    configuration: str = ""  # of the runs with this rate: necks may distinguish several of one method

    def json(self) -> dict[str, object]:
        """Return the form for `--json`."""
        scores = {f"{rate:g}": score for rate, score in self.scores.items()}
        return {"method": self.method, "target": self.target, "lr": self.rate, "scores": scores}


def final_rates(choices: Iterable[RateChoice]) -> dict[str, float]:
    """Map configuration to the rate for a model of all domains."""
    return {choice.configuration: choice.rate for choice in choices if choice.target == ALL_DOMAINS}


def rate_notes(choices: Sequence[RateChoice]) -> list[str]:
    """Return one sentence with the rates per method."""
    by_method: dict[str, dict[str, list[str]]] = {}
    for choice in choices:
        if choice.target != ALL_DOMAINS:
            by_method.setdefault(choice.method, {}).setdefault(f"{choice.rate:g}", []).append(choice.target)
    texts = []
    for method, rates in by_method.items():
        # targets are named only where they differ in the chosen rate
        chosen = [rate if len(rates) == 1 else f"{rate} ({', '.join(targets)})" for rate, targets in rates.items()]
        texts.append(f"{method} {', '.join(chosen)}")
    return [f"learning rates chosen on source domains: {'; '.join(texts)}"] if texts else []


@dataclass
class _Open:
    """A unit that has begun: jobs to begin, jobs that run, and records of finished ones by episode."""

    waiting: deque[Job]
    running: set[str] = field(default_factory=set)
    records: dict[str, RunRecord] = field(default_factory=dict)
    failed: bool = False


class Board:
    """Gives the jobs of units to an engine in the order of the queue, and collects their outcomes."""

    def __init__(
        self, specs: Sequence[Spec], seeds: Sequence[int], workspace: Workspace, *, limit: float, search: bool,
        engine: Engine, watch: ProgressListener,
    ) -> None:  # fmt: skip
        """Plan the units of specs with the first seed; `search` tries other rates where an encoder learns."""
        self.workspace, self.watch, self.engine = workspace, watch, engine
        self.workers = self.engine.workers(workspace.device)
        self.specs: dict[str, Spec] = {}
        # units are identified by name, so specs that differ in other settings get a number
        for spec in specs:
            name = unit_name(spec)
            same = sum(each == name or each.startswith(f"{name} #") for each in self.specs)
            self.specs[f"{name} #{same + 1}" if same else name] = spec
        candidates = [_candidate(name, spec, seeds, search=search) for name, spec in self.specs.items()]
        sizes = workspace.sizes or (len(workspace.dataset),)
        self.slate = queue.Slate(tuple(candidates), sizes, limit)
        self.finished: dict[Unit, Finished] = {}
        self.records: dict[Unit, dict[str, RunRecord]] = {}  # of finished units, by episode
        self.failures: list[Failure] = []
        self.open: dict[Unit, _Open] = {}
        self.units: dict[str, Unit] = {}  # id of a job -> its unit

    def next_job(self) -> Job | None:
        """Return the next job of the most valuable units that have one; None if there is none or the time is up.

        The first two of them take turns, so that a slow one does not occupy all workers, unless one needs all cores.
        """
        while True:
            # ask again after every change: a unit that has just finished may determine what comes next
            units = next_units(self.finished, self.slate)
            # units without a waiting job are left to finish; one that needs all cores shares them with no other
            first = [each for each in units if each not in self.open or self.open[each].waiting][:2]
            first = first if all(self._at_once(each) > 1 for each in first) else first[:1]
            if self.workspace.deadline.passed():
                # records of an earlier command cost no time, and may bring further units whose records exist
                if self._read(units):
                    continue
                return None
            if not first:
                return None
            # the unit with fewer running jobs is next; opening one may finish it at once if all of its records exist
            unit = min(first, key=lambda each: len(self.open[each].running) if each in self.open else 0)
            if unit not in self.open:
                self._begin(unit)
                continue
            job = self.open[unit].waiting.popleft()
            self.open[unit].running.add(job.id)
            self.units[job.id] = unit
            return job

    def has_baseline(self) -> bool:
        """Whether plain training has a result, or takes no part."""
        names = {each.name for each in self.slate.having(queue.BASELINE)}
        return not names or any(unit.name in names for unit in self.finished)

    def _read(self, units: Sequence[Unit]) -> bool:
        """Finish units of which an earlier command left all records, which takes no time; return whether there was one.

        So a comparison that is continued without enough time has all that was finished before.
        """
        before = len(self.finished)
        for unit in units:
            # a unit whose settings do not fit an episode left no records and is not reported now
            with suppress(BadInput):
                if unit not in self.open and all(job.record_in(self.workspace) for job in self._jobs(unit)):
                    self._begin(unit)
        return len(self.finished) > before

    def _begin(self, unit: Unit) -> None:
        """Open a unit and read its finished records."""
        try:
            jobs = self._jobs(unit)
            saved = [(job, job.record_in(self.workspace)) for job in jobs]
        except BadInput as error:
            # settings that do not fit an episode are a failure of this unit alone: the comparison continues
            self.failures.append(Failure(unit, "", str(error), "error"))
            self.open[unit] = _Open(deque(), failed=True)
            self._close(unit)
            return
        records = {job.episode: record for job, record in saved if record is not None}
        self.open[unit] = _Open(deque(job for job, record in saved if record is None), records=records)
        self._close(unit)

    def _jobs(self, unit: Unit) -> list[Job]:
        """Return one job per episode of a unit."""
        spec = self._spec(unit)
        if unit.factor not in (1.0, CHOSEN):
            spec = replace(spec, lr=spec.lr * unit.factor)
        # with CHOSEN, every episode has the rate that is best for its own target
        jobs = []
        for episode in self.workspace.episodes(spec):
            check_episode(spec, episode)
            own = self._chosen(spec, unit, episode.name) if unit.factor == CHOSEN else spec
            jobs.append(Job.of(own, episode))
        return jobs

    def _chosen(self, spec: Spec, unit: Unit, episode: str) -> Spec:
        """Return the spec with the rate that the first seed chose for an episode, and the list of all rates."""
        first = replace(unit, seed=self._first_seed(unit), factor=1.0)
        factors = best_factors(self.finished, first)
        tried = sorted(each.factor for each in self.finished if each == replace(first, factor=each.factor))
        # all tried rates are part of the configuration, and the chosen one is not (`settings_key`): runs of targets
        # with different rates form one row; rounding removes the digits that the product of two floats adds
        rates = [round(spec.lr * factor, 12) for factor in tried if factor != CHOSEN]
        return replace(spec, lr=spec.lr * factors.get(episode, 1.0), searched={"lr": rates})

    def _at_once(self, unit: Unit) -> int:
        """Return the number of runs of a unit at once."""
        return self.engine.at_once(self.specs[unit.name], self.workspace)

    def _first_seed(self, unit: Unit) -> int:
        return next(each.seeds[0] for each in self.slate.candidates if each.name == unit.name)

    def _spec(self, unit: Unit) -> Spec:
        """Return the spec of a unit at its default rate; one with 0 rows uses all of them."""
        rows = 0 if unit.rows >= len(self.workspace.dataset) else unit.rows
        return replace(sized(self.specs[unit.name], rows, self.workspace), seed=unit.seed)

    def _first_choice(self, unit: Unit) -> dict[str, float]:
        """Return the best factor per target for the first seed, which was run at every rate; empty for other units."""
        is_first = unit.factor == 1.0 and unit.seed == self._first_seed(unit)
        return best_factors(self.finished, unit) if is_first else {}

    def add(self, job: Job, outcome: Outcome) -> None:
        """Take note of the outcome of a job; after a failure the other runs of the unit do not begin."""
        unit = self.units.get(job.id)
        if unit is None:  # in the other processes of a distributed run
            return
        state = self.open[unit]
        state.running.discard(job.id)
        if isinstance(outcome, RunRecord):
            state.records[job.episode] = outcome
        elif isinstance(outcome, Failed):
            # a unit counts only with the scores of all targets, so its other jobs would be wasted
            self.failures.append(Failure(unit, job.episode, outcome.cause, outcome.kind))
            state.failed = True
            state.waiting.clear()
        else:
            # the deadline stopped the job: its unit stays open, and `unfinished` lists it
            return
        self._close(unit)

    def _close(self, unit: Unit) -> None:
        """Finish a unit of which nothing is left to run."""
        state = self.open[unit]
        if state.waiting or state.running:
            return
        records = {} if state.failed else state.records
        # the queue plans with the time until a unit is finished: runs at once share it
        seconds = sum(record.cost.get("seconds") or 0.0 for record in state.records.values()) / self._at_once(unit)
        encoding = self.workspace.encoding_seconds.get(unit.rows, 0.0)
        self.finished[unit] = Finished({name: score_of(record) for name, record in records.items()}, seconds, encoding)
        self.records[unit] = records
        del self.open[unit]
        self.watch.unit(unit, list(records.values()), [each for each in self.failures if each.unit == unit])

    def unfinished(self) -> list[Unit]:
        """Return the units that began and were stopped, then others, of every candidate without a unit the first."""
        waiting = [unit for unit in next_units(self.finished, self.slate) if unit not in self.open]
        units = [*self.open, *waiting]
        known = {unit.name for unit in (*self.finished, *units)}
        # candidates that the order has not reached, because their units depend on outcomes that do not exist
        missing = [each for each in self.slate.candidates if each.name not in known]
        return [*units, *(Unit(each.name, each.seeds[0], 1.0, self.slate.sizes[0]) for each in missing)]

    def _in_order(self) -> list[Unit]:
        """Return the finished units in an order that does not depend on which of them finished first."""
        order = {candidate.name: number for number, candidate in enumerate(self.slate.candidates)}
        return sorted(self.records, key=lambda unit: (order[unit.name], unit.rows, unit.seed, unit.factor))

    def results(self) -> list[RunRecord]:
        """Return the records of all finished units, each configuration with its chosen rate.

        Runs at other rates than the chosen one are left out; those at the chosen rate are stored again as runs of a
        searched rate, so that all seeds of a configuration have equal settings.
        """
        records: list[RunRecord] = []
        for unit in self._in_order():
            if unit.factor not in (1.0, CHOSEN):
                continue
            # take the run of the first seed at the chosen rate per target, as for the other seeds
            if factors := self._first_choice(unit):
                chosen = {name: replace(unit, factor=factors.get(name, 1.0)) for name in self.records[unit]}
                records += [self._adopted(self.records[own][name], unit, name) for name, own in chosen.items()]
            else:
                records += self.records[unit].values()
        return records

    def _adopted(self, record: RunRecord, unit: Unit, episode: str) -> RunRecord:
        """Store a run again with the list of rates that it was chosen from, its outputs, weights and state."""
        adopted = replace(record, spec=self._chosen(self._spec(unit), unit, episode).json())
        out = self.workspace.out
        if out is not None and parallel.is_first() and not (out / "records" / f"{adopted.id}.json").exists():
            # links take no space on the disk; the record comes last, because it marks a finished run
            for path in (outputs_path, weights_path, state_path):
                with suppress(FileNotFoundError, FileExistsError):
                    os.link(path(out, record.id), path(out, adopted.id))
            adopted.save(out / "records")
        return adopted

    def choices(self) -> list[RateChoice]:
        """Return the rates that were chosen, per method and target, and for a model of all domains."""
        choices = []
        for unit in self._in_order():
            if not (factors := self._first_choice(unit)):
                continue
            base = self._spec(unit)
            tried = {
                each.factor: outcome for each, outcome in self.finished.items()
                if each == replace(unit, factor=each.factor) and each.factor != CHOSEN
            }  # fmt: skip
            # scores of units are higher where they are better; notes show the metric itself
            sign = -1 if base.metric in LOWER_IS_BETTER else 1
            for target in (*factors, ALL_DOMAINS):
                scores = {
                    base.lr * factor: sign * score for factor, outcome in tried.items()
                    if (score := outcome.scores.get(target) if target else outcome.score) is not None
                }  # fmt: skip
                best = base.lr * factors[target] if target else max(scores, key=lambda lr: sign * scores[lr])
                key = settings_key(self._chosen(base, unit, target).json(), "seed")
                choices.append(RateChoice(base.method, target, best, scores, key))
        return choices


def unit_name(spec: Spec) -> str:
    """Return the method of a spec with its neck, and for a simple baseline its encoder."""
    solved = catalog.inner_method(spec.method).full_batch and spec.method not in CONSTANT
    return f"{spec.encoder} + {full_method_name(spec)}" if solved else full_method_name(spec)


def _candidate(name: str, spec: Spec, seeds: Sequence[int], *, search: bool) -> Candidate:
    """Return the candidate for a spec."""
    plain = name == BASELINE
    role = queue.CONSTANT if spec.method in CONSTANT else queue.SIMPLE if spec.method in SIMPLE else queue.METHOD
    role = queue.BASELINE if plain else role
    entry = catalog.lookup("encoders", spec.encoder)
    slow = encodes(spec) and (entry.pretrained or entry.tokens or "weights" in spec.encoder_args)
    return Candidate(name, role, slow, tuple(seeds), search and is_searchable(spec))


def is_searchable(spec: Spec) -> bool:
    """Whether the rate of a spec is worth a search: its encoder learns, long enough, and not on a stream."""
    entry = catalog.lookup("encoders", spec.encoder)
    return (
        learns(entry, spec.tune)
        and not catalog.inner_method(spec.method).full_batch
        and spec.plan != "stream"
        and spec.steps >= MIN_STEPS
    )


def sized(spec: Spec, rows: int, workspace: Workspace) -> Spec:
    """Return the spec for a sample of the rows, with the number of steps that suits it unless the user chose one."""
    if not rows:
        return spec
    # a spec with the default length for all rows was not changed by the user, and gets the default for the sample
    encoder = catalog.lookup("encoders", spec.encoder)
    length = partial(
        default_length, domains=len(workspace.dataset.domains), batch=spec.batch, per_step=spec.domains_per_step
    )
    default = length(len(workspace.dataset), fewest=encoder.fewest_steps)
    if all(getattr(spec, name) == value for name, value in default.items()):
        spec = replace(spec, **length(rows, fewest=fewest_of_sample(encoder.takes, workspace.device.type)))
    return replace(spec, rows=rows)


def score_of(record: RunRecord) -> float:
    """Return the mean score of a run on validation rows of its sources, higher is better."""
    # without validation scores a run is never the best, and never counts as failed
    score = train_validation(record)
    return float("-inf") if score is None else score
