"""Work off jobs with an engine; a rerun skips finished runs and resumes the others.

A failed run is an outcome like any other: it ends neither the other runs nor the command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import locked
from holdfast.engines.local import Local
from holdfast.record import RunRecord, read_finished
from holdfast.run.jobs import Engine, Failed, Job, Outcome
from holdfast.run.progress import ProgressListener
from holdfast.run.resolve import Request, resolve
from holdfast.run.train import Tick, run_episode
from holdfast.run.workspace import Workspace
from holdfast.spec import Spec


class Source(Protocol):
    """Where jobs come from; what comes next may depend on the outcomes so far."""

    def next_job(self) -> Job | None:
        """Return the next job without a record; None if there is none now."""
        ...

    def add(self, job: Job, outcome: Outcome) -> None:
        """Take note of the outcome of a job."""
        ...


def record_of(job: Job, workspace: Workspace) -> RunRecord | None:
    """Return the saved record of a job, or None."""
    assert workspace.out is not None
    return read_finished(workspace.out / "records" / f"{job.id}.json")


def work(
    source: Source, workspace: Workspace, *, watch: ProgressListener | None = None, engine: Engine | None = None
) -> Iterator[tuple[Job, Outcome]]:
    """Yield the outcomes of the jobs of a source as they arrive, until it has no job left and nothing runs.

    The folder of the runs is locked meanwhile. Processes that train together work on the job of the first one.
    """
    assert workspace.out is not None
    out, watch = workspace.out, watch or ProgressListener()
    workspace.on_encoding = watch.encoding
    with locked(out) if parallel.is_first() else nullcontext():
        if parallel.is_first():
            _remove_checkpoints(out, {path.stem for path in (out / "records").glob("*.json")})
        next_job = partial(parallel.from_first, source.next_job)
        with closing((engine or Local()).run(next_job, workspace, watch=watch)) as outcomes:
            for job, outcome in outcomes:
                if isinstance(outcome, RunRecord):
                    path = out / "records" / f"{job.id}.json"
                    if parallel.is_first() and not path.exists():  # written on the disk of another machine
                        outcome.save(path.parent)
                    watch.end(outcome)
                source.add(job, outcome)
                yield job, outcome


class Fixed:
    """A list of jobs in their order until the deadline; after a failed run, the other runs of its spec are left out."""

    def __init__(self, jobs: Sequence[Job], workspace: Workspace) -> None:
        saved = parallel.from_first(lambda: {job.id: record_of(job, workspace) for job in jobs})
        self.records = {id: record for id, record in saved.items() if record is not None}
        self.waiting = deque({job.id: job for job in jobs if job.id not in self.records}.values())
        self.workspace = workspace
        self.failures: dict[str, Failed] = {}  # by spec

    def next_job(self) -> Job | None:
        while self.waiting and not self.workspace.deadline.passed():
            job = self.waiting.popleft()
            if str(job.spec) not in self.failures:
                return job
        return None

    def add(self, job: Job, outcome: Outcome) -> None:
        if isinstance(outcome, RunRecord):
            self.records[job.id] = outcome
        elif isinstance(outcome, Failed):
            self.failures[str(job.spec)] = outcome


def run_all(
    jobs: Sequence[Job],
    workspace: Workspace,
    *,
    watch: ProgressListener | None = None,
    engine: Engine | None = None,
    on_failure: Callable[[Job, Failed], None] | None = None,
) -> list[RunRecord]:
    """Run resolved jobs; return their records in the order of the jobs.

    A failed run is reported to `on_failure`, and all records of its spec are left out; without `on_failure`, an error
    with its cause is raised after all other runs. Runs that the deadline of the workspace stops have no record.
    """
    source, watch = Fixed(jobs, workspace), watch or ProgressListener()
    watch.start(len({job.id for job in jobs}), len(source.records))
    for job, outcome in work(source, workspace, watch=watch, engine=engine):
        if isinstance(outcome, Failed) and on_failure is not None:
            on_failure(job, outcome)
    if source.failures and on_failure is None:
        raise BadInput(next(iter(source.failures.values())).cause)
    return [source.records[job.id] for job in jobs if job.id in source.records and str(job.spec) not in source.failures]


def _remove_checkpoints(out: Path, finished: Collection[str]) -> None:
    """Delete checkpoints of finished runs: their process ended before it could."""
    for path in (out / "checkpoints").glob("*.safetensors*"):
        if path.name.partition(".")[0] in finished:
            path.unlink(missing_ok=True)


def launch(
    spec: Spec, workspace: Workspace, out: Path, *, tick: Tick | None = None, analyse: Sequence[str] = ()
) -> Iterator[RunRecord]:
    """Yield one record per episode of a spec; finished episodes are read from `out`, interrupted ones are resumed."""
    workspace = replace(workspace, out=Path(out), analyse=tuple(analyse))
    for job in resolve(Request(specs=(spec,)), workspace):
        yield run_episode(spec, job.episode_in(workspace), workspace, tick=tick)
