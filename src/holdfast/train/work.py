"""Work off jobs with an engine; a rerun skips finished runs and resumes the others.

A failed run is an outcome like any other: it ends neither the other runs nor the command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import threadpoolctl
import torch

from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import locked
from holdfast.core.forking import cores
from holdfast.core.stopping import TIME, reason_to_stop, stop
from holdfast.record import RunRecord, read_finished
from holdfast.spec import Spec
from holdfast.train.jobs import Engine, Failed, Job, NextJob, Outcome, Outcomes, run_job
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Request, resolve
from holdfast.train.resume import stop_at_signal
from holdfast.train.run import Tick, run_episode
from holdfast.train.workspace import Workspace


class InThisProcess(Engine):
    """Runs one job after another in this process."""

    def run(self, next_job: NextJob, workspace: Workspace, *, watch: ProgressListener) -> Outcomes:
        with stop_at_signal(), limited_threads():
            while (job := next_job()) is not None:
                check_signal()
                yield job, run_here(job, workspace, watch)


def run_here(job: Job, workspace: Workspace, watch: ProgressListener) -> Outcome:
    """Run a job in this process and report its steps."""
    watch.begin(job.name, job.steps)
    return run_job(job, workspace, tick=watch.step)


def check_signal() -> None:
    """Raise `Interrupted` after a signal; the deadline is left to the runs."""
    reason = parallel.all_max(reason_to_stop())[0]
    if reason != TIME:
        stop(reason)


@contextmanager
def limited_threads() -> Iterator[None]:
    """Limit the threads to the cores, of which a container may have fewer than the machine."""
    before, count = torch.get_num_threads(), cores()
    limits = {pool["prefix"]: min(pool["num_threads"], count) for pool in threadpoolctl.threadpool_info()}
    with threadpoolctl.threadpool_limits(limits):
        torch.set_num_threads(min(before, count))
        try:
            yield
        finally:
            torch.set_num_threads(before)


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
        with closing((engine or InThisProcess()).run(next_job, workspace, watch=watch)) as outcomes:
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
