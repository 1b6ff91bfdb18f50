"""Time budgets: which runs of a comparison fit, and which are left out.

The core consists of the simple baselines, ERM and its moving average. Runs are left out until the rest fits: further
seeds of other methods; then other methods and further seeds of the core; then the core itself; within each of these
groups the most expensive runs first. They run in the opposite order. Simple baselines that need no encoding are never
left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.report.labels import CONSTANT
from holdfast.run.assemble import encodes
from holdfast.run.jobs import Job
from holdfast.run.slate import is_simple
from holdfast.run.timing import Clock, Timing, configuration, unit_of
from holdfast.spec import Spec

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
SIMPLE = ("majority", "logistic")
CORE = (*SIMPLE, "boosting", "erm", "moving-average(erm)")
UNLIMITED = "none"


def parse_budget(text: str) -> float | None:
    """Return seconds from `90s`, `2m` or `1.5h`; None for `none`."""
    if text == UNLIMITED:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    if match is None or not float(match[1]):
        raise BadInput(f"--budget takes a duration such as 90s, 2m or 1h, or none; got '{text}'")
    return float(match[1]) * UNITS[match[2]]


@dataclass(frozen=True)
class Budget:
    """A number of seconds from a start."""

    seconds: float
    started: float = field(default_factory=time.monotonic)
    clock: Clock = time.monotonic

    def left(self) -> float:
        """Return the seconds left, negative after the end."""
        return self.seconds - (self.clock() - self.started)


@dataclass(frozen=True)
class Unit:
    """All runs of one method with one seed: they are run or left out together."""

    key: str
    method: str  # configuration without the seed
    position: int  # of the method in the comparison
    rank: int  # of the seed among those of the method
    core: bool
    seconds: float
    simple: bool = False  # a baseline that is cheap enough to run in any case

    @property
    def group(self) -> int:
        """Value of the runs: 0 is always run, a higher one is left out before a lower one."""
        if self.simple and not self.rank:
            return 0
        return 1 + (not self.core) + bool(self.rank)

    @property
    def priority(self) -> tuple[int, float, int, int]:
        """Sort key: the most valuable and cheapest runs first."""
        return self.group, self.seconds, self.rank, self.position


def units_to_drop(units: Sequence[Unit], available: float) -> set[str]:
    """Return the keys of the units to leave out so that the others take at most `available` seconds."""
    total, dropped = sum(unit.seconds for unit in units), set[str]()
    for unit in sorted(units, key=lambda unit: unit.priority, reverse=True):
        if total <= available or not unit.group:
            break
        dropped.add(unit.key)
        total -= unit.seconds
    return dropped


class Allowance:
    """Decides before every run whether it still fits into the budget, by the durations measured so far.

    A unit begins only if it fits together with the units that are dropped after it. Nothing begins after the end of the
    budget, except for the first unit of all and the simple baselines that are never left out.
    """

    def __init__(self, budget: Budget, jobs: Sequence[Job], timing: Timing, *, reserve: float = 0.0) -> None:
        self.budget, self.timing, self.reserve = budget, timing, reserve
        self.jobs: dict[str, list[Job]] = {}
        for job in jobs:
            self.jobs.setdefault(unit_of(job), []).append(job)
        self.specs = {key: group[0].spec for key, group in self.jobs.items()}
        self.methods = {key: configuration(group[0]) for key, group in self.jobs.items()}
        self.positions = {method: place for place, method in enumerate(dict.fromkeys(self.methods.values()))}
        self.ranks = {key: _rank(self.specs[key], key, self.methods, self.specs) for key in self.jobs}
        self.open = {job.id for job in jobs}  # jobs without a record
        self.begun: set[str] = set()
        self.dropped: set[str] = set()
        self.cut: set[str] = set()  # units that began and could not be completed

    def order(self, jobs: Sequence[Job]) -> list[Job]:
        """Sort the jobs to run by the value and the duration of their units.

        If encoding alone exceeds the budget, runs that need no encoding are preferred.
        """
        self.open = {job.id for job in jobs}
        others = [job for job in jobs if not encodes(job.spec)]
        if others and self.timing.encoding > self.budget.left() - self.reserve:
            self.dropped |= {unit_of(job) for job in jobs} - {unit_of(job) for job in others}
            self.timing.encoding, jobs = 0.0, others
        return sorted(jobs, key=lambda job: self._unit(unit_of(job)).priority)

    def seconds_left(self) -> float | None:
        """Return the seconds until everything that fits is done; None while they are unknown."""
        left = self.timing.left()
        return left if left is None else min(left, max(0.0, self.budget.left()))

    def keep(self, job: Job) -> bool:
        """Whether to run a job now; processes that train together decide together."""
        return bool(parallel.from_first(lambda: self._keep(job)))

    def _keep(self, job: Job) -> bool:
        key = unit_of(job)
        if key in self.begun:
            late = self.budget.left() <= 0 and self._unit(key).group > 0
            if key not in self.cut and late and len(self.begun) > 1:
                self.cut.add(key)
            return key not in self.cut
        late = self.budget.left() <= 0 and self._unit(key).group > 0
        if self.begun and (key in self.dropped or late or key in self._not_fitting()):
            self.dropped.add(key)
            return False
        self.begun.add(key)
        return True

    def _not_fitting(self) -> set[str]:
        waiting = [key for key in self.jobs if key not in self.begun and key not in self.dropped]
        running = sum(self._seconds(key) for key in self.begun - self.cut)
        available = max(0.0, self.budget.left() - self.reserve) * self.timing.workers - running
        return units_to_drop([self._unit(key) for key in waiting], available)

    def _unit(self, key: str) -> Unit:
        spec, method = self.specs[key], self.methods[key]
        simple = spec.method in SIMPLE and not encodes(spec)
        return Unit(key, method, self.positions[method], self.ranks[key], is_core(spec), self._seconds(key), simple)

    def _seconds(self, key: str) -> float:
        """Return the time that the jobs of a unit without an outcome need."""
        pending = [job for job in self.jobs[key] if job.id in self.open - self.timing.done]
        return sum(self.timing.seconds(job) or 0.0 for job in pending)

    def retry(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs of dropped units that fit now, because runs were faster than estimated."""
        units = {unit_of(job) for job in jobs} & self.dropped
        self.dropped -= units
        missing = self._not_fitting() & units
        self.dropped |= missing
        return [job for job in jobs if unit_of(job) in units - missing]

    def is_left_out(self, job: Job) -> bool:
        """Whether the unit of a job was not run or not completed."""
        return unit_of(job) in self.dropped | self.cut

    def left_out(self) -> list[Spec]:
        """Return the specs that were not run or not completed."""
        return [spec for key, spec in self.specs.items() if key in self.dropped or key in self.cut]


def is_core(spec: Spec) -> bool:
    """Whether a spec belongs to the core, which a budget keeps longest."""
    return spec.method in CORE and (spec.neck in ("none", "projection"))


def _rank(spec: Spec, key: str, methods: dict[str, str], specs: dict[str, Spec]) -> int:
    return sum(1 for other, method in methods.items() if method == methods[key] and specs[other].seed < spec.seed)


def left_out_note(specs: Collection[Spec], all_specs: Collection[Spec], budget: str) -> str:
    """Describe in one sentence what a budget left out; empty if nothing was."""
    if not specs:
        return ""
    names: dict[str, list[int]] = {}
    for spec in specs:
        names.setdefault(spec_name(spec), []).append(spec.seed)
    counts: dict[str, int] = {}
    for spec in all_specs:
        counts[spec_name(spec)] = counts.get(spec_name(spec), 0) + 1
    gone = [name for name, seeds in names.items() if len(seeds) == counts[name]]
    fewer: dict[str, list[str]] = {}
    for name, seeds in names.items():
        if name not in gone:
            fewer.setdefault(", ".join(map(str, sorted(seeds))), []).append(name)
    texts = [f"{', '.join(gone)} (all seeds)"] if gone else []
    texts += [f"seed{'s' if ',' in seeds else ''} {seeds} of {', '.join(methods)}" for seeds, methods in fewer.items()]
    return f"left out to stay within {budget}: {'; '.join(texts)}; the same command with a larger --budget continues"


def spec_name(spec: Spec) -> str:
    """Return the method of a spec with its neck, and for a simple baseline its encoder."""
    name = spec.method if spec.neck == "none" else f"{spec.neck}+{spec.method}"
    return f"{spec.encoder}+{name}" if is_simple(spec.method) and spec.method not in CONSTANT else name
