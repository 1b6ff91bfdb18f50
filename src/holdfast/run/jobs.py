"""What an engine tells whoever watches: a base that shows nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from holdfast import catalog
from holdfast.catalog.plugins import UserParts
from holdfast.core.errors import BadInput
from holdfast.methods.base import Metrics
from holdfast.protocols.plan import Episode
from holdfast.record import RunRecord
from holdfast.run.assemble import Workspace, assemble
from holdfast.run.progress import ProgressListener
from holdfast.run.train import Tick, episodes, launch_episode, record_path, training_steps
from holdfast.spec import Spec

Outcome = RunRecord | BadInput
TRIES = 5  # a run whose worker dies so often is the cause itself


@dataclass(frozen=True)
class Job:
    """A spec and the name of its episode; whoever runs it makes the rows anew, so that none of them travel."""

    spec: Spec
    episode: str
    id: str  # of the record
    stages: int = 1

    @staticmethod
    def of(spec: Spec, episode: Episode, out: Path) -> Job:
        return Job(spec, episode.name, record_path(spec, episode, out).stem, len(episode.stages))

    @property
    def name(self) -> str:
        return f"{self.spec.method} {self.episode} seed {self.spec.seed}"

    @property
    def steps(self) -> int:
        return training_steps(self.spec) * self.stages

    def lost(self) -> BadInput:
        """What to say where its workers die again and again."""
        return BadInput(
            f"{self.name} ended its worker {TRIES} times: it may need more memory than there is, so run fewer at once "
            "or give it a smaller batch; what is finished is kept, and the same command goes on from there"
        )


@dataclass(frozen=True)
class Kit:
    """Data, device and folders of many jobs: what a worker gets once."""

    dataset: Any
    device: str
    cache: Path | None
    out: Path
    analyse: tuple[str, ...] = ()
    threads: int = 1
    user_parts: UserParts | None = None  # methods and encoders that user code registered
    environment: dict[str, str] = field(default_factory=dict)  # the variables of this library, as the driver has them

    @staticmethod
    def of(workspace: Workspace, out: Path, analyse: Sequence[str], *, threads: int, device: str = "") -> Kit:
        own = {name: value for name, value in os.environ.items() if name.startswith("HOLDFAST")}
        cache = None if workspace.cache is None else workspace.cache.resolve()
        device, registered = device or workspace.device.type, catalog.user_parts()
        return Kit(workspace.dataset, device, cache, out.resolve(), tuple(analyse), threads, registered, own)

    def workspace(self) -> Workspace:
        """The workshop of a worker, whose runs share what they prepare."""
        os.environ.update(self.environment)
        if self.user_parts is not None:
            self.user_parts.install()
        torch.set_num_threads(self.threads)
        return Workspace(self.dataset, device=torch.device(self.device), cache=self.cache)


Outcomes = Generator[tuple[Job, Outcome], None, None]


class Engine(Protocol):
    """Runs jobs somewhere and gives what became of each, in any order; closed early, it leaves nothing running."""

    def run(
        self, jobs: Sequence[Job], workspace: Workspace, out: Path, *, watch: ProgressListener, analyse: Sequence[str]
    ) -> Outcomes: ...


def do(job: Job, workspace: Workspace, out: Path, *, tick: Tick | None, analyse: Sequence[str] = ()) -> Outcome:
    """Run a job to its record, or to the sentence that says why there is none."""
    try:
        return launch_episode(job.spec, _episode(job, workspace), workspace, out, tick=tick, analyse=analyse)
    except BadInput as error:
        return error


def share_features(jobs: Sequence[Job], workspace: Workspace) -> None:
    """Fill the cache with what many workers would otherwise each compute: features, decoded images."""
    seen = set()
    for job in jobs:
        spec = job.spec
        key = (spec.encoder, str(spec.encoder_args), spec.tune)
        kept = workspace.cache is not None and (spec.tune == "frozen" or workspace.dataset.raw.kind == "image")
        if kept and key not in seen:
            seen.add(key)
            assemble(spec, _episode(job, workspace), workspace)


def _episode(job: Job, workspace: Workspace) -> Episode:
    return next(each for each in episodes(job.spec, workspace) if each.name == job.episode)


class Counted:
    """A tick that counts steps and tells them at most every few seconds, so that many runs tell little."""

    def __init__(self, tell: Callable[[int], None], now: Callable[[], float], every: float) -> None:
        self.tell, self.now, self.every = tell, now, every
        self.steps, self.last = 0, now()

    def __call__(self, metrics: Metrics) -> None:
        self.steps += 1
        if (now := self.now()) - self.last >= self.every:
            self.last = now
            self.tell(self.steps)
