"""HTTP server of a model folder."""

from __future__ import annotations

import platform
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import BadInput
from holdfast.data.raw import Raw
from holdfast.models.saved import SavedModel, load_model
from holdfast.models.versions import current_folder
from holdfast.run.workspace import choose_device
from holdfast.serve.requests import Limits, ParsedRequest, RequestParser, merge

GRACE = 10  # extra seconds to close connections
TASK_INPUTS = {"tag": "sentence", "span": "question"}  # other tasks use the input of the encoder


def serve(service: Service, *, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called with the address."""
    with _bound(host, port) as listening:
        server = _server(service)
        stops = (signal.SIGINT, signal.SIGTERM)

        def stop(number: int, frame: Any) -> None:
            server.should_exit = True  # uvicorn installs its own handlers and re-raises the signal when it stops

        previous = {number: signal.signal(number, stop) for number in stops}
        try:
            ready(_address(listening))
            server.run(sockets=[listening])
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """Run a server on a free local port in a thread for the duration of the block; yield its address."""
    with _bound("127.0.0.1", 0) as listening:
        server = _server(service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="holdfast-server")
        thread.start()
        try:
            yield _address(listening)
        finally:
            server.should_exit = True
            thread.join()


def _server(service: Service) -> Any:
    try:
        import uvicorn

        from holdfast.serve.app import make_app
    except ImportError as error:
        raise BadInput("serving needs FastAPI and uvicorn: run `pip install 'holdfast[serve]'`") from error
    config = uvicorn.Config(
        make_app(service), log_level="warning", access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=int(service.limits.seconds) + GRACE,
    )  # fmt: skip
    return uvicorn.Server(config)


def _bound(host: str, port: int) -> socket.socket:
    if not 0 <= port < 1 << 16:
        raise BadInput(f"--port must be between 0 and 65535; got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"cannot listen on {host} port {port} ({reason}): choose another --port or --host") from error


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Service:
    """A model folder on one device that answers requests."""

    def __init__(
        self, folder: str | Path, *, limits: Limits | None = None, device: str = "auto",
        columns: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.limits, self.device = Path(folder), limits or Limits(), choose_device(device)
        self.saved: SavedModel = load_model(self.folder)
        if self.saved.task == "masked":
            raise BadInput("a model of the task masked cannot be served: fit a model of another task with its encoder")
        encoder = self.saved.encoder
        kind = TASK_INPUTS.get(self.saved.task, encoder.takes)
        self.parser = RequestParser(kind, self.limits, size=encoder.size, columns=columns, features=self.saved.columns)

    @property
    def alone(self) -> bool:
        """Whether predictions of different requests would influence each other."""
        return self.saved.model.prediction_batch is not None

    def answer(self, requests: Sequence[ParsedRequest]) -> list[dict[str, Any]]:
        """Return one answer per example of these requests, equal to offline predictions."""
        raw = merge(requests)
        if self.saved.is_responder:
            answers = [{"response": text} for text in self.saved.responses(raw, device=self.device)]
        elif self.saved.task in TASK_INPUTS:
            columns = self.saved.predict_columns(raw, device=self.device)
            answers = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        else:
            answers = self._class_answers(raw)
        ids = [id for request in requests for id in (request.ids or [None] * len(request))]
        return [answer if id is None else {"id": id, **answer} for id, answer in zip(ids, answers, strict=True)]

    def _class_answers(self, raw: Raw) -> list[dict[str, Any]]:
        """Return label, probabilities, and the percentiles `foreign` and `undecided` if known."""
        predictions, names = self.saved.predict(raw, device=self.device), self.saved.classes
        answers = [
            {"label": names[row.argmax()], "probabilities": dict(zip(names, row.tolist(), strict=True))}
            for row in predictions.probabilities
        ]
        for name, values in (("foreign", predictions.foreign), ("undecided", predictions.undecided)):
            for answer, value in zip(answers, [] if values is None else values.tolist(), strict=values is not None):
                answer[name] = value
        return answers

    def model(self) -> dict[str, Any]:
        """Return names, versions and the card; the local path of an encoder is not disclosed."""
        record, card = self.saved.record, current_folder(self.folder) / "README.md"
        spec = record.spec
        kind, colon, path = spec["encoder"].partition(":")
        shown = f"{kind}:{Path(path).name}" if colon else spec["encoder"]
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        return {
            "name": self.folder.resolve().name, "task": self.saved.task, "takes": self.saved.encoder.takes,
            "labels": list(self.saved.classes), "method": spec["method"], "encoder": shown, **self.saved.components,
            "trained": {"version": record.code["version"], "torch": record.machine["torch"]},
            "versions": {"holdfast": _release(), "torch": torch.__version__, "python": platform.python_version()},
            "card": text.replace(spec["encoder"], shown),
        }  # fmt: skip


def _release() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"
