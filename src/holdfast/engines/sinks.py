"""Where scalars of training runs go: TensorBoard's event files, or an MLflow server; each is imported on demand."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.core.errors import BadInput


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
