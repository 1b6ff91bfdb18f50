"""Run jobs with an engine; a rerun skips finished runs and resumes the others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

from holdfast.core import parallel
from holdfast.core.files import locked
from holdfast.protocols.fit import Diverged
from holdfast.record import RunRecord, read_finished
from holdfast.run.jobs import Engine, Job
from holdfast.run.local import Local
from holdfast.run.progress import ProgressListener
from holdfast.run.resolve import Request, resolve
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
) -> list[RunRecord]:
    """Run resolved jobs; return their records in the order of the jobs.

    The first error ends all runs. With `on_divergence`, a diverged run is reported there instead, all records of its
    spec are left out, and the other runs continue.
    """
    assert workspace.out is not None
    watch, out = watch or ProgressListener(), workspace.out
    workspace.on_encoding = watch.encoding
    paths = {job.id: out / "records" / f"{job.id}.json" for job in jobs}
    saved = parallel.from_first(lambda: {id: read_finished(path) for id, path in paths.items()})
    records = {id: record for id, record in saved.items() if record is not None}
    watch.start(len(paths), len(records))
    diverged: set[str] = set()
    runs = (engine or Local()).run([job for job in jobs if job.id not in records], workspace, watch=watch)
    with locked(out) if parallel.is_first() else nullcontext(), closing(runs):
        for job, outcome in runs:
            if isinstance(outcome, RunRecord):
                records[job.id] = outcome
                if parallel.is_first() and not paths[job.id].exists():  # a worker on another machine has another disk
                    outcome.save(paths[job.id].parent)
                watch.end(outcome)
            elif on_divergence is not None and isinstance(outcome, Diverged):
                diverged.add(str(job.spec))
                on_divergence(job.spec, outcome)
            else:
                raise outcome
    return [records[job.id] for job in jobs if str(job.spec) not in diverged]


def launch(
    spec: Spec, workspace: Workspace, out: Path, *, tick: Tick | None = None, analyse: Sequence[str] = ()
) -> Iterator[RunRecord]:
    """Yield one record per episode of a spec; finished episodes are read from `out`, interrupted ones are resumed."""
    workspace = replace(workspace, out=Path(out), analyse=tuple(analyse))
    for job in resolve(Request(specs=(spec,)), workspace):
        yield run_episode(spec, job.episode_in(workspace), workspace, tick=tick)
