"""Durations of runs: estimated before the first run, measured afterwards; the time left follows from both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from holdfast.run.jobs import Job

Clock = Callable[[], float]


def configuration(job: Job) -> str:
    """Return what the runs of one configuration share: the spec without its seed and a searched rate."""
    return unit_of(replace(job, spec=replace(job.spec, seed=0)))


def unit_of(job: Job) -> str:
    """Return what the runs of one configuration with one seed share."""
    return str(replace(job.spec, lr=0.0) if "lr" in job.spec.searched else job.spec)


def format_seconds(seconds: float) -> str:
    """Return a duration in words: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s" if total % 60 else f"{total // 60} min"
    return f"{total // 3600} h {total % 3600 // 60} min"


class Timing:
    """Seconds per run of every configuration, and the time that a list of jobs still needs.

    `runs` maps configurations to estimated seconds, which measured runs replace; `encoding` is the estimated time of
    encoding before the first run, and `afterwards` that of everything after the last one.
    """

    def __init__(
        self,
        *,
        runs: Mapping[str, float] | None = None,
        encoding: float = 0.0,
        workers: int = 1,
        afterwards: float = 0.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self.estimated, self.encoding, self.workers = dict(runs or {}), encoding, workers
        self.afterwards, self.clock = afterwards, clock
        self.measured: dict[str, list[float]] = {}
        self.pending: dict[str, Job] = {}  # jobs without an outcome, by id
        self.done: set[str] = set()  # ids of jobs with an outcome
        self.begun: dict[str, float] = {}  # id -> time at which the job began
        self._first_encoded: tuple[float, int] | None = None

    def expect(self, jobs: Sequence[Job]) -> None:
        """Add jobs that will run."""
        self.pending |= {job.id: job for job in jobs}

    def begin(self, job: Job) -> None:
        """Note that a job begins."""
        self.begun[job.id] = self.clock()

    def end(self, job: Job) -> None:
        """Measure a job that ended."""
        self.done.add(job.id)
        self.pending.pop(job.id, None)
        if (begun := self.begun.pop(job.id, None)) is not None:
            self.measured.setdefault(configuration(job), []).append(self.clock() - begun)

    def skip(self, job: Job) -> None:
        """Note that a job will not run."""
        self.pending.pop(job.id, None)
        self.begun.pop(job.id, None)

    def encoded(self, done: int, total: int) -> None:
        """Update the time of encoding by its measured speed."""
        now = self.clock()
        if self._first_encoded is None or done < self._first_encoded[1]:
            self._first_encoded = (now, done)
            return
        start, first = self._first_encoded
        if done > first:
            self.encoding = (total - done) * (now - start) / (done - first)

    def all_encoded(self) -> None:
        """Note that no example is left to encode before a run."""
        self.encoding = 0.0

    def seconds(self, job: Job) -> float | None:
        """Return the expected duration of a job: the median of its configuration, else its estimate, else any mean.

        It is the lower median, because the first run of every process also takes the time of imports.
        """
        key = configuration(job)
        if key in self.measured:
            return median_low(self.measured[key])
        if key in self.estimated:
            return self.estimated[key]
        known = [value for values in self.measured.values() for value in values] or list(self.estimated.values())
        return sum(known) / len(known) if known else None

    def left(self) -> float | None:
        """Return the seconds until everything is done, or None while nothing is known."""
        now, total = self.clock(), 0.0
        for id, job in list(self.pending.items()):
            expected = self.seconds(job)
            if expected is None:
                return None
            total += max(0.0, expected - (now - self.begun[id] if id in self.begun else 0.0))
        return self.encoding + total / self.workers + self.afterwards
