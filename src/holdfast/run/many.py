"""run_all: many specs to records, by whatever engine; a rerun skips what is done and goes on with what is not."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

from holdfast.core import parallel
from holdfast.core.files import locked
from holdfast.protocols.fit import Diverged
from holdfast.protocols.plan import Episode
from holdfast.record import RunRecord, read_whole
from holdfast.run.assemble import Workspace, try_build
from holdfast.run.jobs import Engine, Job
from holdfast.run.local import Local
from holdfast.run.progress import ProgressListener
from holdfast.run.train import check_job, episodes
from holdfast.spec import Spec


def run_all(
    specs: Sequence[Spec],
    workspace: Workspace,
    out: Path,
    *,
    only: Container[str] | None = None,
    watch: ProgressListener | None = None,
    analyse: Sequence[str] = (),
    engine: Engine | None = None,
    diverged: Callable[[Spec, Diverged], None] | None = None,
) -> list[RunRecord]:
    """Every episode of every spec, or `only` those named, in order; all are checked before the first is trained.

    A run that fails ends them all; with `diverged`, one that diverges is told there, its spec has no records here, and
    the others go on.
    """
    watch = watch or ProgressListener()
    workspace.watch = watch.encoding
    every = ((spec, episode) for spec in specs for episode in episodes(spec, workspace))
    jobs: dict[str, Job] = {}
    first: dict[str, tuple[Job, Episode]] = {}  # of each configuration
    for spec, episode in [(spec, episode) for spec, episode in every if only is None or episode.name in only]:
        check_job(spec, episode, workspace)
        job = Job.of(spec, episode, out)
        jobs[job.id] = job
        first.setdefault(str(replace(spec, seed=0)), (job, episode))
    paths = {id: out / "records" / f"{id}.json" for id in jobs}
    there = parallel.from_first(lambda: {id: read_whole(path) for id, path in paths.items()})
    found = {id: done for id, done in there.items() if done is not None}
    for job, episode in first.values():
        if job.id not in found:
            try_build(job.spec, episode, workspace)
    watch.start(len(jobs), len(found))
    failed: dict[str, Spec] = {}
    todo = [job for id, job in jobs.items() if id not in found]
    runs = (engine or Local()).run(todo, workspace, out, watch=watch, analyse=analyse)
    with locked(out) if parallel.is_first() else nullcontext(), closing(runs):
        for job, outcome in runs:
            if isinstance(outcome, RunRecord):
                found[job.id] = outcome
                if (
                    parallel.is_first() and not paths[job.id].exists()
                ):  # a worker on another machine may have other disks
                    outcome.save(paths[job.id].parent)
                watch.end(outcome)
            elif diverged is not None and isinstance(outcome, Diverged):
                failed[str(job.spec)] = job.spec
                diverged(job.spec, outcome)
            else:
                raise outcome
    assert all(id in found or str(job.spec) in failed for id, job in jobs.items())
    return [found[id] for id, job in jobs.items() if str(job.spec) not in failed]
