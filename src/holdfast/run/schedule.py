"""Run the jobs of a comparison: estimate their time, choose the number of concurrent runs, and keep to a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.record import RunRecord, read_finished
from holdfast.run.budget import Allowance, Budget, is_core, left_out_note, spec_name
from holdfast.run.estimate import PROBE_SECONDS, Estimate, estimate
from holdfast.run.execute import run_all
from holdfast.run.jobs import Engine, Job
from holdfast.run.local import Local
from holdfast.run.progress import ProgressListener
from holdfast.run.template import cores
from holdfast.run.timing import Timing, configuration, format_seconds
from holdfast.run.workspace import Workspace
from holdfast.spec import Spec

Search = Callable[[Sequence[Job], Budget | None, Engine | None], list[Job]]

DEFAULT_SECONDS = 270.0  # limit of a comparison of the default methods; with the model it takes about 5 minutes
ERM_FACTOR = 12.0  # or this number of times the time of ERM, if that is longer
REPORT_SECONDS = 4.0  # for the report after the runs
LONG_SECONDS = 30.0  # estimated time from which runs of a frozen encoder use all cores
PROBING = 0.1  # share of a budget that probing may take


@dataclass(frozen=True)
class Schedule:
    """Time of a comparison in seconds, and the specs that its budget left out."""

    estimated: float | None
    seconds: float
    budget: float | None
    left_out: tuple[Spec, ...] = ()
    note: str = ""

    def json(self) -> dict[str, object]:
        """Return the form for `--json`."""
        left_out = [{"method": spec_name(spec), "seed": spec.seed} for spec in self.left_out]
        return {**asdict(self), "left_out": left_out}


@dataclass
class Limits:
    """The limit that a user set: a number of seconds from a start, no limit, or the default limit."""

    seconds: float | None = None
    default: bool = False  # no limit was set, and the methods are the default ones
    started: float = field(default_factory=time.monotonic)

    def budget(self, jobs: Sequence[Job], expected: Estimate | None, workers: int) -> Budget | None:
        """Return the budget; the default one needs an estimate."""
        if self.seconds is not None:
            return Budget(self.seconds, self.started)
        if not self.default or expected is None:
            return None
        erm = [job for job in jobs if job.spec.method == "erm" and is_core(job.spec)]
        seconds = expected.encoding + ERM_FACTOR * (expected.total(erm, workers=workers) - expected.encoding)
        return Budget(max(DEFAULT_SECONDS, seconds), self.started)


def run_scheduled(
    jobs: Sequence[Job],
    workspace: Workspace,
    limits: Limits,
    *,
    watch: ProgressListener | None = None,
    engine: Engine | None = None,
    model: bool = False,
    search: Search | None = None,
) -> tuple[list[RunRecord], Schedule]:
    """Run jobs within the limits; return the records of what was completed, and the schedule.

    With `model`, time for training the chosen method afterwards is reserved. `search` replaces the jobs after the
    estimate, or before it if an earlier search is in the folder.
    """
    assert workspace.out is not None
    limited, watch = limits.seconds is not None, watch or ProgressListener()
    if limited and engine is not None and not isinstance(engine, Local):
        raise BadInput("--budget needs --engine local: a cluster begins runs in its own order")
    watch.estimating()
    if search is not None and (workspace.out / "rates").exists():
        limit = Budget(limits.seconds, limits.started) if limits.seconds is not None else None
        jobs, search = search(jobs, limit, engine), None
    paths = [workspace.out / "records" / f"{job.id}.json" for job in jobs]
    finished = parallel.from_first(lambda: [record for record in map(read_finished, paths) if record is not None])
    known = {record.id for record in finished}
    waiting = [job for job in jobs if job.id not in known]
    workspace.on_encoding = None
    probing = PROBE_SECONDS if limits.seconds is None else min(PROBE_SECONDS, PROBING * limits.seconds)
    threads = _threads_per_run(waiting, workspace, engine)
    expected = estimate(waiting, workspace, finished, always=limited, limit=probing, threads=threads)
    engine = engine or _default_engine(waiting, workspace, expected, limits)
    workers = engine.count(len(waiting), workspace.device) if isinstance(engine, Local) else 1
    reserve = REPORT_SECONDS + (_model_seconds(jobs, expected) if model else 0.0)
    total = None if expected is None else expected.total(waiting, workers=workers) + reserve
    budget = limits.budget(jobs, expected, workers) if isinstance(engine, Local) else None
    for sentence in _sentences(waiting, expected, total, workers, budget):
        watch.note(sentence)
    runs = {} if expected is None else dict(expected.runs)
    if search is not None:
        watch.note("the learning rate of every method is searched first, on source domains")
        before, jobs = jobs, search(jobs, budget, engine)
        renamed = {configuration(new): configuration(old) for old, new in zip(before, jobs, strict=True)}
        runs |= {new: runs[old] for new, old in renamed.items() if old in runs}
    timing = Timing(
        runs=runs, encoding=0.0 if expected is None else expected.encoding, workers=workers,
        afterwards=reserve if waiting else 0.0,
    )  # fmt: skip
    allowance = None if budget is None else Allowance(budget, jobs, timing, reserve=reserve)
    records = run_all(jobs, workspace, watch=watch, engine=engine, timing=timing, allowance=allowance)
    left_out = () if allowance is None else tuple(allowance.left_out())
    seconds = time.monotonic() - limits.started
    within = "" if budget is None else f"{'the default limit' if not limited else 'the budget'} of {_text(budget)}"
    note = "" if allowance is None else left_out_note(left_out, allowance.specs.values(), within)
    return records, Schedule(total, seconds, None if budget is None else budget.seconds, left_out, note)


def _text(budget: Budget) -> str:
    return format_seconds(budget.seconds)


def _default_engine(jobs: Sequence[Job], workspace: Workspace, expected: Estimate | None, limits: Limits) -> Local:
    """Return one run at a time, or one per core for long comparisons of a frozen encoder, whose runs are small."""
    if expected is None or not _are_small(jobs, workspace):
        return Local()
    long = expected.total(jobs) - expected.encoding > LONG_SECONDS  # workers take seconds to start
    long = long and (limits.seconds is None or limits.seconds > 2 * LONG_SECONDS)
    return Local(cores()) if long else Local()


def _threads_per_run(jobs: Sequence[Job], workspace: Workspace, engine: Engine | None) -> int:
    """Return the number of threads that a run will have, which the estimate assumes."""
    if isinstance(engine, Local):
        return max(1, torch.get_num_threads() // engine.count(len(jobs), workspace.device))
    return 1 if engine is None and _are_small(jobs, workspace) else torch.get_num_threads()


def _are_small(jobs: Sequence[Job], workspace: Workspace) -> bool:
    """Whether all runs are on cached features or sparse counts on the CPU, and can be run by other processes."""
    if workspace.device.type != "cpu" or workspace.cache is None:
        return False
    frozen = all(job.spec.tune == "frozen" or catalog.lookup("encoders", job.spec.encoder).sparse for job in jobs)
    return frozen and all(_importable(job.spec.method) for job in jobs)


def _importable(method: str) -> bool:
    """Whether another process can import a method."""
    targets = [entry.target for _, entry in catalog.unwrap("methods", method)]
    return not any(target.startswith("__main__:") or "<locals>" in target for target in targets)


def _model_seconds(jobs: Sequence[Job], expected: Estimate | None) -> float:
    """Return the time of training the methods of the core on all domains with every seed, as an ensemble needs it."""
    if expected is None:
        return 0.0
    core = {configuration(job) for job in jobs if is_core(job.spec)}
    return len({job.spec.seed for job in jobs}) * sum(expected.runs.get(key, 0.0) for key in core)


def _sentences(
    jobs: Sequence[Job], expected: Estimate | None, total: float | None, workers: int, budget: Budget | None
) -> list[str]:
    """Return the estimate, and the limit if the runs may exceed it."""
    if total is None or expected is None:
        return []
    encoding = f", {format_seconds(expected.encoding)} of it for encoding" if expected.encoding >= 1 else ""
    at_once = f", {workers} at once" if workers > 1 else ""
    sentences = [f"estimated time: {format_seconds(total)} for {len(jobs)} runs{at_once}{encoding}"]
    if budget is not None and total > budget.left():
        sentences.append(
            f"runs that do not fit into {_text(budget)} are left out, further seeds of the most expensive methods "
            "first and simple baselines last; --budget none runs everything"
        )
    return sentences
