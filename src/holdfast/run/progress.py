"""A watch that also writes scalars down: what each step says while it trains, validations when a run has its record."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from holdfast.core import processes
from holdfast.core.errors import BadInput
from holdfast.methods.base import Metrics
from holdfast.record import RunRecord

EVERY = 25  # steps whose numbers are fetched from the device at once


class ProgressListener:
    """Override what you want to show; every call is cheap and may be ignored."""

    def encoding(self, done: int, total: int) -> None:
        """Features of a frozen encoder are being computed."""

    def start(self, total: int, finished: int) -> None:
        """So many runs are asked for, of which so many have a record already."""

    def begin(self, name: str, steps: int) -> None:
        """A run begins."""

    def step(self, metrics: Metrics) -> None:
        """A step of the current run was taken."""

    def worker_steps(self, id: str, name: str, done: int, steps: int) -> None:
        """Of several runs at once, the one with this record has taken so many of its steps; all, when it is over."""

    def end(self, record: RunRecord) -> None:
        """The current run has its record."""


@contextmanager
def logged(watch: ProgressListener, log: str | None, folder: Path) -> Iterator[ProgressListener]:
    """The watch itself, or one that writes to what `log` names as well; a run that is stopped keeps what it wrote."""
    if log is None or not processes.is_first():
        yield watch
        return
    made = Logged(watch, open_sink(log, folder))
    try:
        yield made
    finally:
        made.close()


class Logged(ProgressListener):
    """Passes everything on to another watch.

    Steps of training are counted from where this attempt began; validations have the steps of the record.
    """

    def __init__(self, watch: ProgressListener, sink: Sink) -> None:
        self.watch, self.sink = watch, sink
        self.steps, self.waiting, self.running = 0, [], False

    def encoding(self, done: int, total: int) -> None:
        self.watch.encoding(done, total)

    def start(self, total: int, finished: int) -> None:
        self.watch.start(total, finished)

    def begin(self, name: str, steps: int) -> None:
        self.close()  # one that diverged has no end
        self.watch.begin(name, steps)
        self.steps, self.waiting, self.running = 0, [], True
        self.sink.begin(name)

    def step(self, metrics: Metrics) -> None:
        self.watch.step(metrics)
        self.steps += 1
        self.waiting.append((self.steps, metrics))
        if len(self.waiting) >= EVERY:
            self._flush()

    def worker_steps(self, id: str, name: str, done: int, steps: int) -> None:
        self.watch.worker_steps(id, name, done, steps)

    def end(self, record: RunRecord) -> None:
        self._flush()
        for step, values in validations(record):
            self.sink.scalars(values, step)
        self.close()
        self.watch.end(record)

    def close(self) -> None:
        """Write what waits, and end the run if one is under way."""
        if self.running:
            self.running = False
            self._flush()
            self.sink.end()

    def _flush(self) -> None:
        for step, metrics in self.waiting:
            self.sink.scalars({f"train/{name}": float(value) for name, value in metrics.items()}, step)
        self.waiting = []


def validations(record: RunRecord) -> Iterator[tuple[int, dict[str, float]]]:
    """Score and risk of each domain at each validation, its step counted over phases and stages."""
    before = 0
    for stage in record.stages:
        phase, last = None, 0
        for check in stage["history"]:
            if check["phase"] != phase:
                phase, before, last = check["phase"], before + last, 0
            last = check["step"]
            told = {f"valid/{name}": value for name, value in record.validations(check).items() if value is not None}
            told |= {f"risk/{name}": value for name, value in check["loss"].items()}
            yield before + last, {name: value for name, value in told.items() if math.isfinite(value)}
        before += last


class Sink(Protocol):
    """Takes named numbers, run after run."""

    def begin(self, name: str) -> None: ...

    def scalars(self, values: Mapping[str, float], step: int) -> None: ...

    def end(self) -> None: ...


def open_sink(text: str, folder: Path) -> Sink:
    """`tensorboard` writes to the folder, `tensorboard:DIR` there; `mlflow:URI` sends to that server or store."""
    kind, _, place = text.partition(":")
    if kind == "tensorboard":
        return TensorBoard(Path(place) if place else folder)
    if kind == "mlflow" and place:
        return MLflow(place)
    raise BadInput(f"--log takes tensorboard, tensorboard:DIR or mlflow:URI, not '{text}'")


class TensorBoard:
    """One folder of event files a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None
        self._make = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter

    def begin(self, name: str) -> None:
        self._writer = self._make(str(self.folder / _plain(name)))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(_plain(name), value, step)

    def end(self) -> None:
        self._writer.close()


class MLflow:
    """One run of the experiment `holdfast` a run."""

    def __init__(self, uri: str) -> None:
        self._mlflow = _module("mlflow", "mlflow")
        self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment("holdfast")

    def begin(self, name: str) -> None:
        self._mlflow.start_run(run_name=name)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics({_plain(name): value for name, value in values.items()}, step=step)

    def end(self) -> None:
        self._mlflow.end_run()


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadInput(f"--log {package} needs the package {package}: run `pip install 'holdfast[log]'`") from error


def _plain(name: str) -> str:
    """Only what both take in names and folders."""
    return re.sub(r"[^\w./ -]", "_", name).replace(" ", "-")
