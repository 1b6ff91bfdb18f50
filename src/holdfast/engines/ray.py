"""Engine for a Ray cluster: one task per run, retried from its last checkpoint if a worker or a node dies."""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import BadInput, one_line
from holdfast.core.stopping import TIME, Deadline, Interrupted, reason_to_stop, stop
from holdfast.engines.work import MAX_ATTEMPTS, InputCache, StepReporter, outcome_of, unimportable
from holdfast.record import RunRecord
from holdfast.train.progress import ProgressListener
from holdfast.train.resume import stop_at_signal
from holdfast.train.run import Engine, Failed, Job, NextJob, Outcome, Outcomes, Stopped
from holdfast.train.workspace import Workspace

MAX_SUBMITTED = 1000  # tasks that the cluster knows at once; the others wait in the driver
EXTRA = 4  # tasks that wait in the cluster, so that a free node has one at once
GRACE = 30.0  # time that runs have to save after the deadline, with what a network needs to report it
POLL_SECONDS = 0.2  # interval at which a request to stop is noticed
OUTCOMES_PER_POLL = 8
PROGRESS_INTERVAL = 2.0  # interval between two reports of the steps of a run
LONG_RUN_SECONDS = 10.0  # time without an outcome after which runs report their steps
STOP_SECONDS = 60.0  # time that runs have to finish their step and save
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning that runs without a GPU see none
}


@dataclass(frozen=True)
class Ray(Engine):
    """A cluster at an address, or a temporary one on this machine, and the resources per run.

    `gpus` may be fractional; None means one if the driver's device is a GPU, otherwise none.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float | None = None

    def run(self, next_job: NextJob, workspace: Workspace, *, watch: ProgressListener) -> Outcomes:
        gpus = float(workspace.device.type == "cuda") if self.gpus is None else self.gpus
        device, threads = "cuda" if gpus else "cpu", max(1, int(self.cpus))
        with _connected(self.address) as ray, stop_at_signal():
            self._check(ray, gpus)
            task = ray.remote(_task).options(num_cpus=self.cpus, num_gpus=gpus, max_retries=MAX_ATTEMPTS - 1)
            shared = workspace.for_worker(threads=threads, device=device)
            cache = InputCache(workspace) if device == workspace.device.type else None
            yield from _Driver(ray, task, shared, watch, cache, slots=self._slots(ray, gpus)).run(next_job)

    def _slots(self, ray: Any, gpus: float) -> int:
        """Return the number of runs that the cluster computes at once."""
        resources, needs = ray.cluster_resources(), {"CPU": self.cpus, "GPU": gpus}
        slots = [int(resources.get(name, 0) / need) for name, need in needs.items() if need]
        return max(1, min([*slots, MAX_SUBMITTED - EXTRA]))

    def _check(self, ray: Any, gpus: float) -> None:
        """Raise if no node has the resources of a run, which would wait forever."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(n.get("CPU", 0) >= self.cpus and n.get("GPU", 0) >= gpus for n in nodes):
            resources = "; ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in nodes)
            wanted = f"{self.cpus:g} CPUs and {gpus:g} GPUs"
            raise BadInput(f"no node of the Ray cluster has {wanted} (nodes: {resources}): lower --cpus or --gpus")


class _Driver:
    """Submits tasks, collects outcomes, and cancels what is left when it is closed."""

    def __init__(
        self, ray: Any, task: Any, workspace: Workspace, watch: ProgressListener, cache: InputCache | None,
        *, slots: int,
    ) -> None:  # fmt: skip
        self.ray, self.task, self.watch, self.cache, self.slots = ray, task, watch, cache, slots
        self.deadline = workspace.deadline
        self.workspace = ray.put(workspace)
        self.channel, self.actor = StepChannel(self.workspace.hex()), None
        self.running: dict[Any, Job] = {}  # by the reference to the outcome
        self.last_poll = self.last_outcome = time.monotonic()

    def run(self, next_job: NextJob) -> Outcomes:
        """Submit jobs while the cluster has room, and yield the outcomes."""
        try:
            while True:
                yield from self._submit(next_job)
                if not self.running:
                    return
                if (reason := reason_to_stop()) != TIME:
                    stop(reason)
                count = min(OUTCOMES_PER_POLL, len(self.running))
                ready, _ = self.ray.wait(list(self.running), num_returns=count, timeout=POLL_SECONDS)
                for reference in ready:
                    self.last_outcome = time.monotonic()
                    job = self.running.pop(reference)
                    outcome = self._outcome(reference)
                    self.watch.worker_steps(job.id, job.name, job.steps, job.steps)
                    if isinstance(outcome, RunRecord):
                        self.watch.begin(job.name, job.steps)
                    yield job, outcome
                self._poll_steps()
                yield from self._late()
        finally:
            self._stop()

    def _submit(self, next_job: NextJob) -> Outcomes:
        """Submit tasks until the cluster has a few more than it computes; yield those that cannot run."""
        while len(self.running) < self.slots + EXTRA and (job := next_job()) is not None:
            outcome = Failed(reason) if (reason := unimportable(job.spec)) else None
            if outcome is None and self.cache is not None:
                outcome = self.cache.fill(job)
            if outcome is None:
                self.running[self.task.remote(job, [self.workspace], self.channel, self.deadline.left())] = job
            else:
                yield job, outcome

    def _late(self) -> Outcomes:
        """Cancel tasks that still run some seconds after the deadline."""
        if self.deadline.left() < -GRACE:
            for reference, job in list(self.running.items()):
                self.ray.cancel(reference, force=True)
                del self.running[reference]
                yield job, Stopped()

    def _outcome(self, reference: Any) -> Outcome:
        known = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except known.OutOfMemoryError as error:
            return Failed(one_line(f"its node has too little memory: {error}"), "memory")
        except (known.WorkerCrashedError, known.NodeDiedError, known.ObjectLostError) as error:
            fix = "use a smaller --batch, or more --cpus per run"
            return Failed(f"its worker process died {MAX_ATTEMPTS} times ({type(error).__name__}): {fix}", "killed")
        except known.RayTaskError as error:
            return Failed(one_line(f"its task failed: {error}"))

    def _poll_steps(self) -> None:
        """Forward the step counts of long runs to the listener."""
        if time.monotonic() - self.last_poll >= PROGRESS_INTERVAL:
            self.last_poll = time.monotonic()
            if self.actor is None and self.last_poll - self.last_outcome >= LONG_RUN_SECONDS:
                self.actor = self.channel.open()
            steps = {} if self.actor is None else self.ray.get(self.actor.take.remote())
            for job in self.running.values():
                if job.id in steps:
                    self.watch.worker_steps(job.id, job.name, steps[job.id], job.steps)

    def _stop(self) -> None:
        """Cancel running tasks, which save their state, and kill those that take too long."""
        for reference in self.running:
            self.ray.cancel(reference, force=False)
        remaining, deadline = list(self.running), time.monotonic() + STOP_SECONDS
        while remaining and time.monotonic() < deadline:
            _, remaining = self.ray.wait(remaining, num_returns=len(remaining), timeout=POLL_SECONDS)
        for reference in remaining:
            self.ray.cancel(reference, force=True)
        if self.actor is not None:
            self.ray.kill(self.actor)


_workspaces: dict[str, Workspace] = {}  # the newest workspace of this worker process, by the key of its driver


def _task(job: Job, workspaces: list[Any], channel: StepChannel, seconds: float) -> Outcome:
    """Run a job on a node for at most this number of seconds; its process keeps the workspace for the next job."""
    if channel.key not in _workspaces:
        _workspaces.clear()
        workspace = importlib.import_module("ray").get(workspaces[0])
        workspace.worker.install()
        _workspaces[channel.key] = workspace
    tick = StepReporter(lambda steps: channel.report(job.id, steps), PROGRESS_INTERVAL)
    workspace = _workspaces[channel.key]
    workspace.deadline = Deadline(seconds)  # by the clock of the node
    with stop_at_signal():  # Ray cancels a task with SIGINT: it saves and ends
        try:
            return outcome_of(job, workspace, tick=tick)
        except Interrupted:
            return Stopped()


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Connect to the user's cluster, or start one on this machine for the duration of the context."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise BadInput("--engine ray needs the package ray: run `pip install 'holdfast[ray]'`") from error
    initialized = ray.is_initialized()
    if not initialized:
        location = address or os.environ.get("RAY_ADDRESS") or "local"
        options = {"include_dashboard": False} if location == "local" else {}
        try:
            ray.init(location, logging_level=logging.ERROR, log_to_driver=False, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            message = f"no Ray cluster answers at --address {location} ({reason}): start one, or leave --address out"
            raise BadInput(message) from error
    try:
        yield ray
    finally:
        if not initialized:
            ray.shutdown()


class StepCounts:
    """Ray actor on the driver's node that collects the step counts of long runs."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def report(self, id: str, steps: int) -> None:
        self.steps[id] = steps

    def take(self) -> dict[str, int]:
        """Return the counts reported since the last call."""
        steps, self.steps = self.steps, {}
        return steps


@dataclass(frozen=True)
class StepChannel:
    """How tasks reach the step counts of their driver, which opens the channel only for long runs."""

    key: str  # identifies the driver

    def open(self) -> Any:
        """Start the actor on this node; it ends with the calling process."""
        ray = importlib.import_module("ray")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return ray.remote(StepCounts).options(name=self._name, num_cpus=0, scheduling_strategy=here).remote()

    def report(self, id: str, steps: int) -> None:
        """Report the steps of a run if the channel is open."""
        with suppress(ValueError):
            importlib.import_module("ray").get_actor(self._name).report.remote(id, steps)

    @property
    def _name(self) -> str:
        return f"holdfast-steps-{self.key}"
