"""Run jobs with an engine; a rerun skips finished runs and resumes the others."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from holdfast.core import parallel
from holdfast.core.files import locked
from holdfast.protocols.fit import Diverged
from holdfast.record import RunRecord, read_finished
from holdfast.run.budget import Allowance
from holdfast.run.jobs import Engine, Job
from holdfast.run.local import Local
from holdfast.run.progress import ProgressListener
from holdfast.run.resolve import Request, resolve
from holdfast.run.timing import Timing
from holdfast.run.train import Tick, run_episode
from holdfast.run.workspace import Workspace
from holdfast.spec import Spec


def run_all(
    jobs: Sequence[Job],
    workspace: Workspace,
    *,
    watch: ProgressListener | None = None,
    engine: Engine | None = None,
    on_divergence: Callable[[Spec, Diverged], None] | None = None,
    timing: Timing | None = None,
    allowance: Allowance | None = None,
) -> list[RunRecord]:
    """Run resolved jobs; return their records in the order of the jobs.

    The first error ends all runs. With `on_divergence`, a diverged run is reported there instead, all records of its
    spec are left out, and the other runs continue. With an `allowance`, so are those that do not fit into its budget.
    """
    assert workspace.out is not None
    watch, out, timing = watch or ProgressListener(), workspace.out, timing or Timing()
    paths = {job.id: out / "records" / f"{job.id}.json" for job in jobs}
    saved = parallel.from_first(lambda: {id: read_finished(path) for id, path in paths.items()})
    records = {id: record for id, record in saved.items() if record is not None}
    watch.start(len(paths), len(records))
    watch.expect(timing.left if allowance is None else allowance.seconds_left)

    def on_encoding(done: int, total: int) -> None:
        timing.encoded(done, total)
        watch.encoding(done, total)

    def keep(job: Job) -> bool:
        timing.all_encoded()
        if allowance is not None and not allowance.keep(job):
            timing.skip(job)
            return False
        timing.begin(job)
        return True

    workspace.on_encoding = on_encoding
    diverged: set[str] = set()
    queue = [job for job in jobs if job.id not in records]
    queue = queue if allowance is None else allowance.order(queue)
    with locked(out) if parallel.is_first() else nullcontext():
        if parallel.is_first():
            _remove_checkpoints(out, records)
        while queue:
            timing.expect(queue)
            with closing((engine or Local()).run(queue, workspace, watch=watch, keep=keep)) as runs:
                for job, outcome in runs:
                    timing.end(job)
                    if isinstance(outcome, RunRecord):
                        records[job.id] = outcome
                        if parallel.is_first() and not paths[job.id].exists():  # written on the disk of another machine
                            outcome.save(paths[job.id].parent)
                        watch.end(outcome)
                    elif on_divergence is not None and isinstance(outcome, Diverged):
                        diverged.add(str(job.spec))
                        on_divergence(job.spec, outcome)
                    else:
                        raise outcome
            queue = [] if allowance is None else parallel.from_first(partial(allowance.retry, queue))
    left_out = set()
    if allowance is not None:
        left_out = parallel.from_first(lambda: {job.id for job in jobs if allowance.is_left_out(job)})
    return [records[job.id] for job in jobs if str(job.spec) not in diverged and job.id not in left_out]


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
