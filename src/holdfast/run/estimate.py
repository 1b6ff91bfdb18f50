"""Estimate the time of jobs before they run: a few steps per configuration on a sample of the data.

The duration of a run is that of building its parts, of its steps, and of scoring its validation and test rows. Scoring
a row is assumed to take a third of the time of a training step per row. Methods that are solved at once are probed on
more rows, because the time of few rows is mostly overhead. Every probe follows a run that is not timed, so that
imports and first calls do not count. Records of earlier runs replace the probe.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.methods.base import Metrics
from holdfast.nn.backbones.base import Backbone
from holdfast.protocols.plan import Episode, rows_of
from holdfast.record import RunRecord
from holdfast.run.assemble import assemble, encodes
from holdfast.run.jobs import Job
from holdfast.run.timing import configuration
from holdfast.run.train import torch_threads, train
from holdfast.run.workspace import Workspace

PROBE_STEPS = 4  # per phase; the first one is not counted
PROBE_ROWS = 64  # per domain
SOLVED_ROWS = 512  # per domain, for methods that are solved at once
PROBE_SECONDS = 20.0  # after this time no further configuration is probed
FEW_STEPS = {"cpu": 500, "cuda": 2000}  # of all jobs together, below which nothing is probed
FROZEN_STEP = 0.2  # steps on cached features are short, and count as this share of a step
ENCODED_ROWS, ENCODED_BATCHES = 32, 5  # of the sample, to measure the speed of encoding
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
    jobs: Sequence[Job], workspace: Workspace, finished: Sequence[RunRecord] = (), *,
    always: bool = False, limit: float = PROBE_SECONDS, threads: int | None = None,
) -> Estimate | None:  # fmt: skip
    """Estimate the time of jobs; None if they are few and short, unless `always`, or shared by several processes.

    After `limit` seconds no further configuration is probed. `threads` is the number per run, for several runs at once.
    """
    steps = sum(job.steps * (FROZEN_STEP if encodes(job.spec) else 1.0) for job in jobs)
    if not jobs or parallel.world_size() > 1 or (steps < FEW_STEPS.get(workspace.device.type, 0) and not always):
        return None
    runs = _recorded(jobs, finished)
    firsts = {configuration(job): job for job in reversed(jobs)}
    missing = sorted((job for key, job in reversed(firsts.items()) if key not in runs), key=_probed_late)
    started, probes = time.perf_counter(), dict[str, _Probe]()
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        small = _sample(jobs, workspace, Path(folder))
        for job in missing:
            if time.perf_counter() - started > limit and any(probe.steps > 1 for probe in probes.values()):
                break
            probe = _probe(job, workspace, small, threads or torch.get_num_threads())
            if probe is not None:
                probes[configuration(job)] = probe
                runs[configuration(job)] = probe.seconds(job, workspace)
        encoding = _encoding_seconds(jobs, workspace, small)
    trained = [(job.spec.neck, runs[key]) for job in missing if (key := configuration(job)) in probes]
    for job in missing if trained else ():  # those without a probe: as the slowest of the others, with the same neck
        similar = [seconds for neck, seconds in trained if neck == job.spec.neck]
        runs.setdefault(configuration(job), max(similar or [seconds for _, seconds in trained]))
    return Estimate(encoding, runs)


def _probed_late(job: Job) -> int:
    """Sort key of the probes: ERM and methods with a neck, which take longest, then baselines, then other methods."""
    if job.spec.neck != "none" or job.spec.method == "erm":
        return 0
    return 1 if _is_solved_at_once(job) else 2


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
    """Return a workspace on a sample of the data, which shares the frozen encoders and their cached features."""
    rows = max(PROBE_ROWS, 2 * max(job.spec.batch for job in jobs))
    cache = None if workspace.cache is None else folder
    shared = {"encoders": workspace.encoders, "macs": workspace.macs}
    return Workspace(workspace.dataset.limited(rows), workspace.device, cache, complete=workspace, **shared)


def _larger_sample(job: Job, workspace: Workspace, small: Workspace) -> Workspace:
    """Return a sample for methods that are solved at once: more rows, or repeated ones if these are encoded."""
    shared = {"encoders": workspace.encoders, "macs": workspace.macs}
    if small.cache is None or not encodes(job.spec):
        return Workspace(workspace.dataset.limited(SOLVED_ROWS), workspace.device, small.cache, **shared)
    encoder = assemble(job.spec, _episode(job, small), small).encoder
    count = min(len(workspace.dataset), SOLVED_ROWS * len(workspace.dataset.domains))
    rows = np.resize(np.arange(len(small.dataset)), max(count, len(small.dataset)))
    features = small.frozen_features(encoder)[torch.from_numpy(rows)]
    return Workspace(small.dataset.subset(rows), small.device, small.cache, features={encoder: features}, **shared)


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
            return self.step * max(1.0, len(rows_of(stages[0].train)) / max(1, self.rows))
        per_row = self.step / max(1, spec.batch * len(stages[0].train))
        validations = -(-job.steps // (len(stages) * spec.every))
        scored = sum(validations * len(rows_of(stage.valid)) + len(rows_of(stage.test)) for stage in stages)
        return self.fixed + self.step * job.steps + SCORING * per_row * scored


def _probe(job: Job, workspace: Workspace, small: Workspace, threads: int) -> _Probe | None:
    """Train a few steps on the sample; None if that is not possible, such as for a class that the sample lacks."""
    at_once = _is_solved_at_once(job)
    steps = 1 if at_once else PROBE_STEPS
    spec = replace(job.spec, steps=steps, every=steps, patience=0)
    ticks: list[float] = []

    def tick(metrics: Metrics) -> None:
        if small.device.type == "cuda":
            torch.cuda.synchronize(small.device)
        ticks.append(time.perf_counter())

    try:
        episode = _episode(job, small)
        train(replace(spec, steps=1, every=1), episode, small)  # also encodes the sample, which is timed separately
        sample = _larger_sample(job, workspace, small) if at_once else small
        episode = _episode(job, sample)
        with torch_threads(threads):
            started = time.perf_counter()
            train(spec, episode, sample, tick=tick)
            total = time.perf_counter() - started
    except BadInput:
        return None
    if steps == 1 or len(ticks) < 2:
        return _Probe(0.0, total, 1, len(rows_of(episode.stages[0].train)))
    phases = [ticks[at : at + steps] for at in range(0, len(ticks), steps)]  # of which each has its own speed
    step = mean(median(after - before for before, after in pairwise(phase)) for phase in phases if len(phase) > 1)
    return _Probe(max(0.0, total - step * len(ticks)), step, len(ticks), len(rows_of(episode.stages[0].train)))


def _episode(job: Job, small: Workspace) -> Episode:
    return next(episode for episode in small.episodes(job.spec) if episode.name == job.episode)


def _is_solved_at_once(job: Job) -> bool:
    return catalog.unwrap("methods", job.spec.method)[-1][1].load().full_batch


def _encoding_seconds(jobs: Sequence[Job], workspace: Workspace, small: Workspace) -> float:
    """Return the time of encoding the rows whose features are not cached, over all frozen encoders of the jobs."""
    if workspace.cache is None:
        return 0.0
    firsts = {(job.spec.encoder, str(job.spec.encoder_args)): job for job in jobs if encodes(job.spec)}
    seconds = 0.0
    for job in firsts.values():
        with suppress(BadInput):  # as in a probe
            encoder = assemble(job.spec, _episode(job, small), small).encoder
            forms = encoder.concatenated() or (encoder,)
            counts = {form: rows for form in forms if (rows := workspace.rows_to_encode(form))}
            seconds += sum(rows * _seconds_per_row(form, small) for form, rows in counts.items())
    return seconds


@torch.no_grad()
def _seconds_per_row(encoder: Backbone, small: Workspace) -> float:
    """Measure encoding on small batches of short to long examples, which differ little in length as in a real pass."""
    examples, size = small.examples(small.store(encoder)), min(ENCODED_ROWS, len(small.dataset))
    lengths = examples.store.lengths()
    order = torch.arange(len(examples)) if lengths is None else lengths.argsort(stable=True)
    starts = torch.linspace(0, len(order) - size, ENCODED_BATCHES).long().tolist()
    encoder.to(small.device).eval()
    seconds = []
    for start in (starts[0], *starts):  # the first one is not counted
        began = time.perf_counter()
        encoder(examples.inputs(order[start : start + size])).cpu()
        seconds.append(time.perf_counter() - began)
    return sum(seconds[1:]) / (size * len(starts))


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
