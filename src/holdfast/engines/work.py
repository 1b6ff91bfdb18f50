"""Work off jobs: loop over them with an engine, run one in this process, and turn its error into an outcome.

A rerun skips finished runs and resumes the others. A failed run is an outcome like any other: it ends neither the other
runs nor the command.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import threadpoolctl
import torch

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput, one_line
from holdfast.core.files import locked, write_text
from holdfast.core.forking import cores
from holdfast.core.stopping import TIME, Interrupted, TimeUp, reason_to_stop, stop, until
from holdfast.engines.gpu import max_workers
from holdfast.methods.base import Metrics
from holdfast.record import RunRecord
from holdfast.spec import Spec
from holdfast.train.assemble import assemble, encodes
from holdfast.train.fit import Diverged, OutOfMemory
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Request, resolve
from holdfast.train.resume import stop_at_signal
from holdfast.train.run import Engine, Failed, Job, NextJob, Outcome, Outcomes, Stopped, Tick, is_small, train_and_save
from holdfast.train.workspace import Workspace

T = TypeVar("T")
PACKAGE = Path(__file__).parents[1]
KINDS = {Diverged: "diverged", OutOfMemory: "memory"}  # of failures; other bad input is "input"
MAX_ATTEMPTS = 2  # of a run whose worker is killed, lacks memory or has a GPU fault; the second one is alone


def outcome_of(job: Job, workspace: Workspace, *, tick: Tick | None) -> Outcome:
    """Run a job until the workspace's deadline; return its record, or why there is none.

    Only signals raise. An unexpected error of one process of a distributed run raises, too: the others wait for it.
    """
    return isolated(job, workspace, lambda: train_and_save(job.spec, job.episode_in(workspace), workspace, tick=tick))


def isolated(job: Job, workspace: Workspace, call: Callable[[], T]) -> T | Failed | Stopped:
    """Return the result of a call that belongs to a job, or why there is none."""
    try:
        with until(workspace.deadline):
            return call()
    except TimeUp:
        return Stopped()
    except Interrupted:
        raise
    except BadInput as error:
        return Failed(one_line(str(error)), KINDS.get(type(error), "input"))
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

    def __init__(self, report: Callable[[int], None], every: float) -> None:
        self.report, self.every = report, every
        self.steps, self.last = 0, time.monotonic()

    def __call__(self, metrics: Metrics) -> None:
        self.steps += 1
        if (now := time.monotonic()) - self.last >= self.every:
            self.last = now
            self.report(self.steps)


@dataclass(frozen=True)
class Local(Engine):
    """At most `jobs` runs at once; 0 means one per core, or the number of runs that fit the memory of the GPUs.

    Workers start when at least two runs wait. With 0, runs on a CPU that are not small take turns and use all cores.
    """

    jobs: int = 1

    def workers(self, device: torch.device) -> int:
        """Return the largest number of runs at once."""
        return self.jobs or max_workers(device)

    def at_once(self, spec: Spec, workspace: Workspace) -> int:
        """Return the number of runs of a spec at once: on a CPU, larger ones take turns unless `jobs` is set."""
        takes_turns = not self.jobs and workspace.device.type == "cpu" and not is_small(spec, workspace)
        return 1 if takes_turns else self.workers(workspace.device)

    def run(self, next_job: NextJob, workspace: Workspace, *, watch: ProgressListener) -> Outcomes:
        with stop_at_signal(), limited_threads():
            if self.workers(workspace.device) > 1 and not parallel.active():
                from holdfast.engines.pool import Pool

                yield from Pool(self, next_job, workspace, watch).run()
                return
            while (job := next_job()) is not None:
                check_signal()
                yield job, run_here(job, workspace, watch)


def default_engine(specs: Sequence[Spec], *, steps: bool = False) -> Engine:
    """Return the engine without any option: concurrent runs if other processes can import all methods.

    With `steps`, a listener needs every step, which runs in other processes do not report.
    """
    alone = steps or parallel.world_size() > 1 or any(map(unimportable, specs))
    return Local(1 if alone else 0)


def parse_jobs(text: str) -> Local:
    """Return the engine for the value of `--jobs`: a number or `auto`."""
    if text == "auto":
        return Local(0)
    if not text.isdecimal() or not int(text):
        raise BadInput(f"--jobs must be auto or a number of runs at once, at least 1; got '{text}'")
    return Local(int(text))


def run_here(job: Job, workspace: Workspace, watch: ProgressListener) -> Outcome:
    """Run a job in this process and report its steps."""
    watch.begin(job.name, job.steps)
    return outcome_of(job, workspace, tick=watch.step)


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
        saved = parallel.from_first(lambda: {job.id: job.record_in(workspace) for job in jobs})
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
        yield train_and_save(spec, job.episode_in(workspace), workspace, tick=tick)
