"""Jobs and the interface of the engines that run them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from holdfast import catalog
from holdfast.catalog.encoders import GENERAL
from holdfast.core import parallel
from holdfast.core.errors import BadInput, one_line
from holdfast.core.files import write_text
from holdfast.core.stopping import Interrupted, TimeUp, until
from holdfast.methods.base import Metrics
from holdfast.record import RunRecord, run_id
from holdfast.spec import Spec
from holdfast.train.assemble import assemble, encodes
from holdfast.train.fit import Diverged, OutOfMemory
from holdfast.train.plan import Episode
from holdfast.train.progress import ProgressListener
from holdfast.train.run import Tick, run_episode, training_steps
from holdfast.train.workspace import Workspace

T = TypeVar("T")
PACKAGE = Path(__file__).parents[1]
MAX_ATTEMPTS = 2  # of a run whose worker is killed, lacks memory or has a GPU fault; the second one is alone


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

    @property
    def name(self) -> str:
        neck = "" if self.spec.neck in ("none", "projection") else f"{self.spec.neck}+"
        neck = f"{GENERAL}+{neck}" if self.spec.encoder == GENERAL else neck
        return f"{neck}{self.spec.method} {self.title or self.episode} seed {self.spec.seed}"

    @property
    def steps(self) -> int:
        return training_steps(self.spec) * self.stages

    def episode_in(self, workspace: Workspace) -> Episode:
        """Return the episode with its rows."""
        return next(episode for episode in workspace.episodes(self.spec) if episode.name == self.episode)


@dataclass(frozen=True)
class Failed:
    """A run that ended with an error, in one sentence; other runs are not affected."""

    cause: str
    kind: str = "error"  # one of FAILURES


@dataclass(frozen=True)
class Stopped:
    """A run that the deadline stopped; its checkpoint lets the same command continue."""


FAILURES = ("error", "input", "diverged", "memory", "killed", "device")
Outcome = RunRecord | Failed | Stopped
NextJob = Callable[[], Job | None]  # the next job to begin; None if there is none now
Outcomes = Generator[tuple[Job, Outcome], None, None]


class Engine(Protocol):
    """Runs jobs and yields their outcomes in any order; if it is closed early, no process keeps running.

    It asks for the next job whenever it has room for one, and again after every outcome, on which the answer may
    depend. It ends when there is no next job and nothing runs.
    """

    def run(self, next_job: NextJob, workspace: Workspace, *, watch: ProgressListener) -> Outcomes: ...

    def workers(self, device: torch.device) -> int:
        """Return the largest number of runs at once that share this machine."""
        return 1

    def at_once(self, spec: Spec, workspace: Workspace) -> int:
        """Return the number of runs of a spec at once, by which their times add up more slowly."""
        return 1


def run_job(job: Job, workspace: Workspace, *, tick: Tick | None) -> Outcome:
    """Run a job until the workspace's deadline; return its record, or why there is none.

    Only signals raise. An unexpected error of one process of a distributed run raises, too: the others wait for it.
    """
    return isolated(job, workspace, lambda: run_episode(job.spec, job.episode_in(workspace), workspace, tick=tick))


def isolated(job: Job, workspace: Workspace, call: Callable[[], T]) -> T | Failed | Stopped:
    """Return the result of a call that belongs to a job, or why there is none."""
    try:
        with until(workspace.deadline):
            return call()
    except TimeUp:
        return Stopped()
    except Interrupted:
        raise
    except Diverged as error:
        return Failed(one_line(str(error)), "diverged")
    except OutOfMemory as error:
        return Failed(one_line(str(error)), "memory")
    except BadInput as error:
        return Failed(one_line(str(error)), "input")
    except Exception as error:
        if parallel.active():
            raise
        return _failed(job, workspace, error)


def _failed(job: Job, workspace: Workspace, error: Exception) -> Failed:
    """Write the traceback of an unexpected error to the folder `failures`, and return the outcome."""
    trace = "".join(traceback.format_exception(error))
    if workspace.out is not None:
        with suppress(OSError):
            write_text(workspace.out / "failures" / f"{job.id}.txt", trace)
    where = _origin(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        fix = "use a smaller --batch, shorter inputs or a smaller encoder"
        return Failed(f"not enough memory ({where}): {fix}", "memory")
    message = f": {error}" if str(error) else ""
    if isinstance(error, torch.AcceleratorError):  # another process on the same GPU may have caused it
        return Failed(one_line(f"the GPU failed{message} ({where})"), "device")
    return Failed(one_line(f"{type(error).__name__}{message} ({where})"))


def _origin(error: Exception) -> str:
    """Return file and line of the innermost frame of this package."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    path, line = [(path, line) for path, line in frames if path.is_relative_to(PACKAGE)][-1]
    return f"{path.relative_to(PACKAGE.parent).as_posix()}:{line}"


def worker_workspace(workspace: Workspace, *, threads: int, device: str = "") -> Workspace:
    """Return the workspace to send to worker processes."""
    return workspace.for_worker(threads=threads, device=device)


class InputCache:
    """Computes once what the workers would otherwise all compute: features of frozen encoders and decoded images."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.seen: set[tuple[str, str, str, int]] = set()

    def lacks(self, job: Job) -> bool:
        """Whether inputs of a job remain to be computed."""
        encoded = encodes(job.spec) or self.workspace.dataset.raw.kind == "image"
        return encoded and self.workspace.cache is not None and _inputs_of(job) not in self.seen

    def fill(self, job: Job) -> Failed | Stopped | None:
        """Fill the cache with the inputs of a job, once per encoder; return why the job cannot run."""
        spec, workspace = job.spec, self.workspace
        if not self.lacks(job):
            return None
        sampled = workspace.sampled(spec.rows)
        outcome = isolated(job, workspace, lambda: assemble(spec, job.episode_in(workspace), sampled))
        if isinstance(outcome, Failed | Stopped):
            return outcome
        self.add(job)
        return None

    def add(self, job: Job, *, seconds: float | None = None) -> None:
        """Take note that the inputs of a job are there, and of the time that another process took."""
        self.seen.add(_inputs_of(job))
        if seconds is not None:
            self.workspace.encoding_seconds[job.spec.rows or len(self.workspace.dataset)] = seconds


@dataclass(frozen=True)
class Fill:
    """A request to compute the inputs of a job."""

    job: Job


def _inputs_of(job: Job) -> tuple[str, str, str, int]:
    """Return the same value for jobs that share encoded inputs."""
    return job.spec.encoder, str(job.spec.encoder_args), job.spec.tune, job.spec.rows


def unimportable(spec: Spec) -> str:
    """Return why another process cannot import the method of a spec; an empty string if it can."""
    for name, entry in catalog.unwrap("methods", spec.method):
        if entry.target.startswith("__main__:") or "<locals>" in entry.target:
            fix = "define it at the top level of a module, or run with one job in this process"
            return f"method '{name}' ({entry.target}) cannot be imported by worker processes: {fix}"
    return ""


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
