"""Many runs on a Ray cluster: one task a run, tried again where a worker or a node dies, from its last checkpoint."""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.protocols.resume import Interrupted, stop_at_signal, stop_if_requested
from holdfast.record import RunRecord
from holdfast.run.assemble import Workspace
from holdfast.run.jobs import TRIES, Counted, Job, Kit, Outcome, Outcomes, do, share_features
from holdfast.run.progress import ProgressListener

WINDOW = 1000  # tasks that the cluster knows of at once; the others wait in the driver
LOOK = 0.2  # seconds between looks at whether we were asked to stop
TOGETHER = 8  # outcomes that are taken at once where runs are so short that many end between two looks
PROGRESS_INTERVAL = 2.0  # seconds between two words of a run about its steps
LONG = 10.0  # seconds without an outcome after which runs are worth asking for their steps
PATIENCE = 60.0  # seconds that runs which were asked to stop may take to end their step and save
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a run without a GPU sees none, and Ray need not say so
}


@dataclass(frozen=True)
class Ray:
    """A cluster by its address, or one on this machine for the while; what each run is given of it.

    `gpus` may be a part of one; None is one where the driver's device is a GPU.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float | None = None

    def run(
        self, jobs: Sequence[Job], workspace: Workspace, out: Path, *, watch: ProgressListener, analyse: Sequence[str]
    ) -> Outcomes:
        if not jobs:
            return
        gpus = float(workspace.device.type == "cuda") if self.gpus is None else self.gpus
        device = "cuda" if gpus else "cpu"
        if device == workspace.device.type:
            share_features(jobs, workspace)
        kit = Kit.of(workspace, out, analyse, threads=max(1, int(self.cpus)), device=device)
        with _connected(self.address) as ray, stop_at_signal():
            self._check(ray, gpus)
            task = ray.remote(_task).options(num_cpus=self.cpus, num_gpus=gpus, max_retries=TRIES - 1)
            yield from _Driver(ray, task, kit, watch).run(jobs)

    def _check(self, ray: Any, gpus: float) -> None:
        """A run that no node of the cluster can hold would wait for ever."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(n.get("CPU", 0) >= self.cpus and n.get("GPU", 0) >= gpus for n in nodes):
            has = "; ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in nodes)
            raise BadInput(
                f"no node of the cluster has {self.cpus:g} CPUs and {gpus:g} GPUs for a run (there are {has}): "
                "ask for less with --cpus and --gpus"
            )


class _Driver:
    """Submits, watches, and cleans up behind itself."""

    def __init__(self, ray: Any, task: Any, kit: Kit, watch: ProgressListener) -> None:
        self.ray, self.task, self.watch = ray, task, watch
        self.kit = ray.put(kit)
        self.place, self.board = Place(self.kit.hex()), None
        self.under_way: dict[Any, Job] = {}  # by the reference to the outcome
        self.looked = self.heard = time.monotonic()

    def run(self, jobs: Sequence[Job]) -> Outcomes:
        waiting = iter(jobs)
        try:
            while self._submit(waiting) or self.under_way:
                stop_if_requested()
                few = min(TOGETHER, len(self.under_way))
                ready, _ = self.ray.wait(list(self.under_way), num_returns=few, timeout=LOOK)
                for each in ready:
                    self.heard = time.monotonic()
                    job = self.under_way.pop(each)
                    outcome = self._outcome(each, job)
                    self.watch.worker_steps(job.id, job.name, job.steps, job.steps)
                    if isinstance(outcome, RunRecord):
                        self.watch.begin(job.name, job.steps)
                    yield job, outcome
                self._look()
        finally:
            self._end()

    def _submit(self, waiting: Iterator[Job]) -> bool:
        """Fill the window; whether anything was submitted."""
        before = len(self.under_way)
        while len(self.under_way) < WINDOW and (job := next(waiting, None)) is not None:
            self.under_way[self.task.remote(job, [self.kit], self.place)] = job
        return len(self.under_way) > before

    def _outcome(self, reference: Any, job: Job) -> Outcome:
        known = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except known.RayTaskError as error:
            raise RuntimeError(f"{job.name} failed in a worker:\n{error}") from None
        except (known.WorkerCrashedError, known.NodeDiedError, known.OutOfMemoryError, known.ObjectLostError):
            return job.lost()

    def _look(self) -> None:
        """Pass on how far the runs are."""
        if time.monotonic() - self.looked >= PROGRESS_INTERVAL:
            self.looked = time.monotonic()
            if self.board is None and self.looked - self.heard >= LONG:
                self.board = self.place.put_up()
            told = {} if self.board is None else self.ray.get(self.board.take.remote())
            for job in self.under_way.values():
                if job.id in told:
                    self.watch.worker_steps(job.id, job.name, told[job.id], job.steps)

    def _end(self) -> None:
        """Where runs are under way, let them save; none goes on without us."""
        for reference in self.under_way:
            self.ray.cancel(reference, force=False)
        left, until = list(self.under_way), time.monotonic() + PATIENCE
        while left and time.monotonic() < until:
            _, left = self.ray.wait(left, num_returns=len(left), timeout=LOOK)
        for reference in left:
            self.ray.cancel(reference, force=True)
        if self.board is not None:
            self.ray.kill(self.board)


_shops: dict[str, tuple[Kit, Workspace]] = {}  # of this worker process: one, that of the last kit


def _task(job: Job, kits: list[Any], place: Place) -> Outcome:
    """A run on a node; its process keeps the data for the next."""
    if place.key not in _shops:
        _shops.clear()
        kit = importlib.import_module("ray").get(kits[0])
        _shops[place.key] = (kit, kit.workspace())
    kit, workspace = _shops[place.key]
    tick = Counted(lambda steps: place.tell(job.id, steps), time.monotonic, PROGRESS_INTERVAL)
    with stop_at_signal():  # a task that is cancelled gets what Ctrl-C gives: it saves and ends
        try:
            return do(job, workspace, kit.out, tick=tick, analyse=kit.analyse)
        except Interrupted:
            return BadInput(f"{job.name} was asked to stop")


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster of the user's, or to one on this machine that ends with us."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise BadInput("--engine ray needs the package ray: run `pip install 'holdfast[ray]'`") from error
    ours = not ray.is_initialized()
    if ours:
        where = address or os.environ.get("RAY_ADDRESS") or "local"
        alone = {"include_dashboard": False} if where == "local" else {}
        try:
            ray.init(where, logging_level=logging.ERROR, log_to_driver=False, **alone)
        except (ConnectionError, RuntimeError, ValueError) as error:
            told = " ".join(str(error).split())[:300]
            raise BadInput(f"no Ray cluster answers at {where} ({told}): start one, or leave --address out") from error
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


class Board:
    """An actor of Ray beside the driver; runs that last long tell it their steps now and then."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def tell(self, id: str, steps: int) -> None:
        self.steps[id] = steps

    def take(self) -> dict[str, int]:
        """What was told since the last time."""
        told, self.steps = self.steps, {}
        return told


@dataclass(frozen=True)
class Place:
    """Where a board hangs once the driver has put it up: short runs need none."""

    key: str  # what tells the runs of one driver from those of another

    def put_up(self) -> Any:
        """The board, beside whoever calls this and gone with it."""
        ray = importlib.import_module("ray")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return ray.remote(Board).options(name=self._name, num_cpus=0, scheduling_strategy=here).remote()

    def tell(self, id: str, steps: int) -> None:
        """Pin the steps of a run, if there is a board yet."""
        with suppress(ValueError):
            importlib.import_module("ray").get_actor(self._name).tell.remote(id, steps)

    @property
    def _name(self) -> str:
        return f"holdfast-board-{self.key}"
