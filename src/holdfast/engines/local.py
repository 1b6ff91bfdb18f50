"""Many specs on this machine, one run after another; a rerun skips what is done and goes on with what is not."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

from holdfast.assembly import Workshop
from holdfast.engines.watch import Watch
from holdfast.experiment import check_job, episodes, launch_episode, record_path, training_steps
from holdfast.protocols.resume import stop_at_signal, stop_if_asked
from holdfast.record import RunRecord
from holdfast.spec import Spec


def run_all(
    specs: Sequence[Spec],
    workshop: Workshop,
    out: Path,
    *,
    only: Container[str] | None = None,
    watch: Watch | None = None,
    analyse: Sequence[str] = (),
) -> list[RunRecord]:
    """Every episode of every spec, or `only` those named, in order; all are checked before the first is trained."""
    watch = watch or Watch()
    workshop.watch = watch.encoding
    every = ((spec, episode) for spec in specs for episode in episodes(spec, workshop))
    jobs = [(spec, episode) for spec, episode in every if only is None or episode.name in only]
    for spec, episode in jobs:
        check_job(spec, episode, workshop)
    watch.start(len(jobs), sum(record_path(spec, episode, out).exists() for spec, episode in jobs))
    records = []
    with stop_at_signal():
        for spec, episode in jobs:
            stop_if_asked()
            fresh = not record_path(spec, episode, out).exists()
            if fresh:
                watch.begin(f"{spec.method} {episode.name} seed {spec.seed}", training_steps(spec))
            records.append(launch_episode(spec, episode, workshop, out, tick=watch.step, analyse=analyse))
            if fresh:
                watch.end()
    return records
