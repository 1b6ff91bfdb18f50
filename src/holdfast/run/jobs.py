"""Jobs and the interface of the engines that run them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.methods.base import Metrics
from holdfast.protocols.plan import Episode
from holdfast.record import RunRecord, run_id
from holdfast.run.assemble import assemble, encodes
from holdfast.run.progress import ProgressListener
from holdfast.run.train import Tick, run_episode, training_steps
from holdfast.run.workspace import Workspace
from holdfast.spec import Spec

MAX_ATTEMPTS = 5  # a run whose worker dies this often is the cause itself


@dataclass(frozen=True)
class Job:
    """One run: a spec and the name of one of its episodes.

    It holds no rows, so it is cheap to send; a worker generates the episode from the spec.
    """

    spec: Spec
    episode: str
    id: str  # of the record
    stages: int = 1
    title: str = ""  # of the episode, where it differs from its name

    @staticmethod
    def of(spec: Spec, episode: Episode) -> Job:
        return Job(spec, episode.name, run_id(spec.json(), episode.name), len(episode.stages), episode.title)

    def with_spec(self, spec: Spec) -> Job:
        """Return the same episode with another spec."""
        return Job(spec, self.episode, run_id(spec.json(), self.episode), self.stages, self.title)

    @property
    def name(self) -> str:
        return f"{self.spec.method} {self.title or self.episode} seed {self.spec.seed}"

    @property
    def steps(self) -> int:
        return training_steps(self.spec) * self.stages

    def episode_in(self, workspace: Workspace) -> Episode:
        """Return the episode with its rows."""
        return next(episode for episode in workspace.episodes(self.spec) if episode.name == self.episode)

    def worker_died(self) -> BadInput:
        """Return the error for a job whose workers died `MAX_ATTEMPTS` times."""
        fix = "use fewer --jobs or a smaller --batch; finished runs are saved, and the same command resumes"
        return BadInput(f"the worker of {self.name} died {MAX_ATTEMPTS} times, possibly for lack of memory: {fix}")


@dataclass(frozen=True)
class Failed:
    """A run that ended with an error, in one sentence; other runs are not affected."""

    cause: str
    kind: str = "error"  # one of FAILURES


@dataclass(frozen=True)
class Stopped:
    """A run that the deadline stopped; its checkpoint lets the same command continue."""


FAILURES = ("error", "diverged", "memory", "killed")
Outcome = RunRecord | Failed | Stopped
NextJob = Callable[[], Job | None]  # the next job to begin; None if there is none now
Outcomes = Generator[tuple[Job, Outcome], None, None]


class Engine(Protocol):
    """Runs jobs and yields their outcomes in any order; if it is closed early, no process keeps running.

    It asks for the next job whenever it has room for one, and again after every outcome, on which the answer may
    depend. It ends when there is no next job and nothing runs.
    """

    def run(self, next_job: NextJob, workspace: Workspace, *, watch: ProgressListener) -> Outcomes: ...


def run_job(job: Job, workspace: Workspace, *, tick: Tick | None) -> Outcome:
    """Run a job; return its record, or the error that stopped it."""
    try:
        return run_episode(job.spec, job.episode_in(workspace), workspace, tick=tick)
    except BadInput as error:
        return error


def worker_workspace(
    jobs: Sequence[Job], workspace: Workspace, *, threads: int, device: str = "", warm_cache: bool = True
) -> Workspace:
    """Return the workspace to send to worker processes, after caching what they would otherwise all compute."""
    _check_importable(jobs)
    if warm_cache:
        cache_inputs(jobs, workspace)
    return workspace.for_worker(threads=threads, device=device)


def cache_inputs(jobs: Sequence[Job], workspace: Workspace) -> None:
    """Fill the cache with features of frozen encoders and decoded images, once per encoder."""
    seen = set()
    for job in jobs:
        spec = job.spec
        key = (spec.encoder, str(spec.encoder_args), spec.tune)
        cached = workspace.cache is not None and (encodes(spec) or workspace.dataset.raw.kind == "image")
        if cached and key not in seen:
            seen.add(key)
            assemble(spec, job.episode_in(workspace), workspace)


def _check_importable(jobs: Sequence[Job]) -> None:
    """Raise for methods of user code that another process cannot import."""
    for method in dict.fromkeys(job.spec.method for job in jobs):
        for name, entry in catalog.unwrap("methods", method):
            if entry.target.startswith("__main__:") or "<locals>" in entry.target:
                fix = "define it at the top level of a module, or run with one job in this process"
                raise BadInput(f"method '{name}' ({entry.target}) cannot be imported by worker processes: {fix}")


class StepReporter:
    """A tick that counts steps and reports the count at most every few seconds."""

    def __init__(self, report: Callable[[int], None], clock: Callable[[], float], every: float) -> None:
        self.report, self.clock, self.every = report, clock, every
        self.steps, self.last = 0, clock()

    def __call__(self, metrics: Metrics) -> None:
        self.steps += 1
        if (now := self.clock()) - self.last >= self.every:
            self.last = now
            self.report(self.steps)
