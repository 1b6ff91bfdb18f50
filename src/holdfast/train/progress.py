"""Progress callbacks of runs, and a listener that logs scalars to TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core import processes
from holdfast.core.errors import BadInput
from holdfast.record import RunRecord

if TYPE_CHECKING:
    from holdfast.methods.base import Metrics

FLUSH_STEPS = 25  # steps whose metrics are copied from the device together


class ProgressListener:
    """Callbacks that do nothing; override those you need."""

    wants_steps: bool = False  # whether every step matters, so that runs stay in this process

    def note(self, sentence: str) -> None:
        """Something to say before the runs, such as the estimated time."""

    def limit(self, left: Callable[[], float | None]) -> None:
        """`left()` returns the seconds until the command ends, or None while they are unknown."""

    def encoding(self, done: int, total: int) -> None:
        """Features of `done` of `total` examples are computed."""

    def unit(self, unit: Any, records: Sequence[RunRecord], failures: Sequence[Any]) -> None:
        """A unit of a comparison has finished with these records, or failed."""

    def start(self, total: int, finished: int) -> None:
        """The runs start; `finished` of `total` have a record already."""

    def begin(self, name: str, steps: int) -> None:
        """A run starts."""

    def step(self, metrics: Metrics) -> None:
        """The current run took a training step."""

    def worker_steps(self, id: str, name: str, done: int, steps: int) -> None:
        """A run in a worker process took `done` of `steps` steps; `id` is that of its record."""

    def end(self, record: RunRecord) -> None:
        """A run has its record."""


@contextmanager
def with_logging(watch: ProgressListener, log: str | None, folder: Path) -> Iterator[ProgressListener]:
    """Yield a listener that also logs scalars if `log` names a destination; an interrupted run keeps its log."""
    if log is None or not processes.is_first():
        yield watch
        return
    listener = LoggingListener(watch, open_log(log, folder))
    try:
        yield listener
    finally:
        listener.close()


class Forwarding(ProgressListener):
    """Forwards every call to another listener; override those that need more."""

    def __init__(self, watch: ProgressListener) -> None:
        self.watch = watch
        for name in CALLBACKS:
            if getattr(type(self), name) is getattr(ProgressListener, name):
                setattr(self, name, getattr(watch, name))


CALLBACKS = [name for name, value in vars(ProgressListener).items() if callable(value)]


class LoggingListener(Forwarding):
    """Logs training metrics and validations.

    Training steps are counted from the start of this attempt; validations have the steps of the record.
    """

    wants_steps = True

    def __init__(self, watch: ProgressListener, log: TensorBoard | MLflow | WandB) -> None:
        super().__init__(watch)
        self.log = log
        self.steps, self.pending, self.running = 0, [], False

    def begin(self, name: str, steps: int) -> None:
        self.close()  # a run that diverged has no end
        self.watch.begin(name, steps)
        self.steps, self.pending, self.running = 0, [], True
        self.log.begin(name)

    def step(self, metrics: Metrics) -> None:
        self.watch.step(metrics)
        self.steps += 1
        self.pending.append((self.steps, metrics))
        if len(self.pending) >= FLUSH_STEPS:
            self._flush()

    def end(self, record: RunRecord) -> None:
        self._flush()
        for step, values in validations(record):
            self.log.scalars(values, step)
        self.close()
        self.watch.end(record)

    def close(self) -> None:
        """Write pending metrics and end the current run, if there is one."""
        if self.running:
            self.running = False
            self._flush()
            self.log.end()

    def _flush(self) -> None:
        for step, metrics in self.pending:
            self.log.scalars({f"train/{name}": float(value) for name, value in metrics.items()}, step)
        self.pending = []


def validations(record: RunRecord) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield score and loss per domain at every validation; steps are counted across phases and stages."""
    before = 0
    for stage in record.stages:
        phase, last = None, 0
        for check in stage["history"]:
            if check["phase"] != phase:
                phase, before, last = check["phase"], before + last, 0
            last = check["step"]
            values = {f"valid/{name}": value for name, value in record.validations(check).items() if value is not None}
            values |= {f"risk/{name}": value for name, value in check["loss"].items()}
            yield before + last, {name: value for name, value in values.items() if math.isfinite(value)}
        before += last


def open_log(text: str, folder: Path) -> TensorBoard | MLflow | WandB:
    """Open `tensorboard` (writes to `folder`), `tensorboard:DIR`, `mlflow:URI`, `wandb` or `wandb:PROJECT`."""
    kind, _, location = text.partition(":")
    if kind == "tensorboard":
        return TensorBoard(Path(location) if location else folder)
    if kind == "mlflow" and location:
        return MLflow(location)
    if kind == "wandb":
        return WandB(location or "holdfast")
    raise BadInput(f"--log takes tensorboard, tensorboard:DIR, mlflow:URI, wandb or wandb:PROJECT, not '{text}'")


class TensorBoard:
    """One folder of event files per run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None
        self._make = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter

    def begin(self, name: str) -> None:
        self._writer = self._make(str(self.folder / _safe_name(name)))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(_safe_name(name), value, step)

    def end(self) -> None:
        self._writer.close()


class MLflow:
    """One MLflow run per run, in the experiment `holdfast`."""

    def __init__(self, uri: str) -> None:
        self._mlflow = _import("mlflow", "mlflow")
        self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment("holdfast")

    def begin(self, name: str) -> None:
        self._mlflow.start_run(run_name=name)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics({_safe_name(name): value for name, value in values.items()}, step=step)

    def end(self) -> None:
        self._mlflow.end_run()


class WandB:
    """One run of Weights & Biases per run, in one project."""

    def __init__(self, project: str) -> None:
        self._wandb, self._project, self._run = _import("wandb", "wandb"), project, None

    def begin(self, name: str) -> None:
        self._run = self._wandb.init(project=self._project, name=name, reinit="finish_previous")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        assert self._run is not None
        # the step is a value: validations are logged after all steps, and the counter of wandb never decreases
        self._run.log({**values, "step": step})

    def end(self) -> None:
        assert self._run is not None
        self._run.finish()


def _import(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadInput(f"--log {package} needs the package {package}: run `pip install 'holdfast[log]'`") from error


def _safe_name(name: str) -> str:
    """Replace characters that TensorBoard, MLflow or a file system rejects."""
    return re.sub(r"[^\w./ -]", "_", name).replace(" ", "-")
