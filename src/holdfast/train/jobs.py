"""Jobs and the interface of the engines that run them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

import torch

from holdfast.catalog.encoders import GENERAL
from holdfast.record import RunRecord, read_finished, run_id
from holdfast.spec import Spec
from holdfast.train.plan import Episode
from holdfast.train.progress import ProgressListener
from holdfast.train.run import training_steps
from holdfast.train.workspace import Workspace


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

    def record_in(self, workspace: Workspace) -> RunRecord | None:
        """Return the saved record, or None."""
        assert workspace.out is not None
        return read_finished(workspace.out / "records" / f"{self.id}.json")


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
