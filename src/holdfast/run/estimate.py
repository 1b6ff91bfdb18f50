"""Estimate the time of jobs before they run: a few steps per configuration on a sample of the data.

The duration of a run is that of building its parts, of its steps, and of scoring its validation and test rows. Scoring
a row is assumed to take a third of the time of a training step per row. Records of earlier runs replace the probe.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import torch

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.methods.base import Metrics
from holdfast.protocols.plan import Episode, rows_of
from holdfast.record import RunRecord
from holdfast.run.assemble import assemble
from holdfast.run.jobs import Job
from holdfast.run.timing import configuration
from holdfast.run.train import train
from holdfast.run.workspace import Workspace

PROBE_STEPS = 3  # per phase; the first one is not counted
PROBE_ROWS = 64  # per domain
PROBE_SECONDS = 20.0  # after this time no further configuration is probed
FEW_STEPS = 500  # of all jobs together, below which nothing is probed
SCORING = 1 / 3  # time of scoring a row, as a share of the time of training on it


@dataclass(frozen=True)
class Estimate:
    """Seconds of encoding before the runs, and per run of every configuration."""

    encoding: float = 0.0
    runs: Mapping[str, float] = field(default_factory=dict)

    def total(self, jobs: Sequence[Job], *, workers: int = 1) -> float:
        """Return the seconds that jobs take with several runs at once."""
        return self.encoding + sum(self.runs.get(configuration(job), 0.0) for job in jobs) / workers


def estimate(
    jobs: Sequence[Job], workspace: Workspace, finished: Sequence[RunRecord] = (), *, always: bool = False
) -> Estimate | None:
    """Estimate the time of jobs; None if they are few and short, unless `always`, or shared by several processes."""
    steps = sum(job.steps for job in jobs)
    if not jobs or parallel.world_size() > 1 or (steps < FEW_STEPS and not always):
        return None
    runs = _recorded(jobs, finished)
    firsts = {configuration(job): job for job in reversed(jobs)}
    missing = [job for key, job in reversed(firsts.items()) if key not in runs]
    started, probes = time.perf_counter(), dict[str, _Probe]()
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        small = _sample(jobs, workspace, Path(folder))
        speed = _EncodingSpeed()
        small.on_encoding = speed
        for job in missing:
            if time.perf_counter() - started > PROBE_SECONDS and any(probe.steps > 1 for probe in probes.values()):
                break
            probe = _probe(job, small)
            if probe is not None:
                probes[configuration(job)] = probe
                runs[configuration(job)] = probe.seconds(job, workspace)
    trained = [runs[key] for key, probe in probes.items() if probe.steps > 1]
    for job in missing if trained else ():  # those without a probe: as the mean of the others
        runs.setdefault(configuration(job), sum(trained) / len(trained))
    return Estimate(_rows_to_encode(jobs, workspace) * speed.seconds_per_row(), runs)


def _recorded(jobs: Sequence[Job], finished: Sequence[RunRecord]) -> dict[str, float]:
    """Return the mean duration of finished runs per configuration of the jobs."""
    specs = {configuration(job): replace(job.spec, seed=0).json() for job in jobs}
    seconds: dict[str, list[float]] = {}
    for record in finished:
        for key, spec in specs.items():
            if {**record.spec, "seed": 0} == spec and "seconds" in record.cost:
                seconds.setdefault(key, []).append(float(record.cost["seconds"]))
    return {key: sum(values) / len(values) for key, values in seconds.items()}


def _sample(jobs: Sequence[Job], workspace: Workspace, folder: Path) -> Workspace:
    """Return a workspace on a sample of the data, which shares the frozen encoders."""
    rows = max(PROBE_ROWS, 2 * max(job.spec.batch for job in jobs))
    cache = None if workspace.cache is None else folder
    return Workspace(workspace.dataset.limited(rows), workspace.device, cache, encoders=workspace.encoders)


@dataclass(frozen=True)
class _Probe:
    """Measured parts of a short run on a sample."""

    fixed: float  # seconds outside of the steps
    step: float  # seconds per step
    steps: int
    rows: int  # of the training part of the sample

    def seconds(self, job: Job, workspace: Workspace) -> float:
        """Return the expected duration of the complete run."""
        stages, spec = job.episode_in(workspace).stages, job.spec
        if _is_solved_at_once(job):
            return self.fixed + self.step * len(rows_of(stages[0].train)) / max(1, self.rows)
        per_row = self.step / max(1, spec.batch * len(stages[0].train))
        validations = -(-job.steps // (len(stages) * spec.every))
        scored = sum(validations * len(rows_of(stage.valid)) + len(rows_of(stage.test)) for stage in stages)
        return self.fixed + self.step * job.steps + SCORING * per_row * scored


def _probe(job: Job, small: Workspace) -> _Probe | None:
    """Train a few steps on the sample; None if that is not possible, such as for a class that the sample lacks."""
    steps = 1 if _is_solved_at_once(job) else PROBE_STEPS
    spec = replace(job.spec, steps=steps, every=steps, patience=0)
    ticks: list[float] = []

    def tick(metrics: Metrics) -> None:
        if small.device.type == "cuda":
            torch.cuda.synchronize(small.device)
        ticks.append(time.perf_counter())

    try:
        episode = _episode(job, small)
        if small.cache is not None and spec.tune == "frozen":
            assemble(spec, episode, small)  # encodes the sample, which is timed separately
        started = time.perf_counter()
        train(spec, episode, small, tick=tick)
    except BadInput:
        return None
    total = time.perf_counter() - started
    if steps == 1 or len(ticks) < 2:
        return _Probe(0.0, total, 1, len(rows_of(episode.stages[0].train)))
    between = sorted(after - before for before, after in pairwise(ticks))
    step = between[len(between) // 2]
    return _Probe(max(0.0, total - step * len(ticks)), step, len(ticks), len(rows_of(episode.stages[0].train)))


def _episode(job: Job, small: Workspace) -> Episode:
    return next(episode for episode in small.episodes(job.spec) if episode.name == job.episode)


def _is_solved_at_once(job: Job) -> bool:
    return catalog.unwrap("methods", job.spec.method)[-1][1].load().full_batch


class _EncodingSpeed:
    """Measures the seconds per row from the progress of encoding."""

    def __init__(self) -> None:
        self.last: tuple[float, int] | None = None
        self.seconds, self.rows = 0.0, 0

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if self.last is not None and done > self.last[1]:
            self.seconds += now - self.last[0]
            self.rows += done - self.last[1]
        self.last = (now, done)

    def seconds_per_row(self) -> float:
        return self.seconds / self.rows if self.rows else 0.0


def _rows_to_encode(jobs: Sequence[Job], workspace: Workspace) -> int:
    """Return the number of rows whose features are not cached, over all frozen encoders of the jobs."""
    if workspace.cache is None:
        return 0
    frozen = {(job.spec.encoder, str(job.spec.encoder_args)) for job in jobs if job.spec.tune == "frozen"}
    known = list(workspace.encoders.values())
    others = max(0, len(frozen) - len(known))
    return sum(map(workspace.rows_to_encode, known)) + others * len(workspace.dataset)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings, which the runs themselves will repeat."""
    logger = logging.getLogger("holdfast")
    disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = disabled
