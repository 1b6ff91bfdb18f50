"""Many specs on this machine, one run after another; a rerun skips what is done and goes on with what is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.assembly import Workshop
from holdfast.engines.watch import Watch
from holdfast.experiment import check_job, episodes, launch_episode, record_path
from holdfast.protocols.resume import stop_at_signal, stop_if_asked
from holdfast.record import RunRecord
from holdfast.spec import Spec


def run_all(
    specs: Sequence[Spec],
    workshop: Workshop,
    out: Path,
    *,
    watch: Watch | None = None,
) -> list[RunRecord]:
    """Every episode of every spec, in order; all are checked before the first is trained."""
    watch = watch or Watch()
    workshop.watch = watch.encoding
    jobs = [(spec, episode) for spec in specs for episode in episodes(spec, workshop)]
    for spec, episode in jobs:
        check_job(spec, episode, workshop)
    watch.start(len(jobs), sum(record_path(spec, episode, out).exists() for spec, episode in jobs))
    records = []
    with stop_at_signal():
        for spec, episode in jobs:
            stop_if_asked()
            fresh = not record_path(spec, episode, out).exists()
            if fresh:
                watch.begin(f"{spec.method} {episode.name} seed {spec.seed}", spec.steps)
            records.append(launch_episode(spec, episode, workshop, out, tick=watch.step))
            if fresh:
                watch.end()
    return records
