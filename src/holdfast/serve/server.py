"""serve: bind, answer, and stop at a signal when what is under way is done."""

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
from holdfast.serve.reading import Asked, Limits, Reader, as_one

GRACE = 10  # seconds beyond the limit of a request, to close connections


def serve(service: Service, *, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Answer until SIGINT or SIGTERM; `ready` is told the address."""
    with _bound(host, port) as listening:
        server = _server(service)
        stops = (signal.SIGINT, signal.SIGTERM)

        def stop(number: int, frame: Any) -> None:
            server.should_exit = True  # the server sets its own handlers, and hands the signal on when it has stopped

        before = {number: signal.signal(number, stop) for number in stops}
        try:
            ready(_address(listening))
            server.run(sockets=[listening])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """A server on a free port of this machine in a thread, for as long as the block takes; its address."""
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
    grace = int(service.limits.seconds) + GRACE
    config = uvicorn.Config(
        make_app(service),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=grace,
    )
    return uvicorn.Server(config)


def _bound(host: str, port: int) -> socket.socket:
    if not 0 <= port < 1 << 16:
        raise BadInput(f"there is no port {port}: choose another --port, up to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        said = error.strerror or str(error)
        raise BadInput(f"cannot listen on {host} port {port} ({said}): choose another --port or --host") from error


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


READ = {"tag": "sentence", "span": "question"}  # others read what their encoder takes


class Service:
    """Answers requests from one model folder, on one device."""

    def __init__(
        self,
        folder: str | Path,
        *,
        limits: Limits | None = None,
        device: str = "auto",
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.limits, self.device = Path(folder), limits or Limits(), choose_device(device)
        self.saved: SavedModel = load_model(self.folder)
        if self.saved.task == "masked":
            raise BadInput("a model of the task masked cannot be served: fit one of another task with its encoder")
        encoder = self.saved.encoder
        kind = READ.get(self.saved.task, encoder.takes)
        self.reader = Reader(kind, self.limits, size=encoder.size, columns=columns, features=self.saved.columns)

    @property
    def alone(self) -> bool:
        """Whether examples of one request would change the predictions of another."""
        return self.saved.model.prediction_batch is not None

    def answer(self, lot: Sequence[Asked]) -> list[dict[str, Any]]:
        """What the model says of every example of these requests, as it would offline."""
        raw = as_one(lot)
        if self.saved.answers:
            found = [{"response": text} for text in self.saved.responses(raw, device=self.device)]
        elif self.saved.task in READ:
            told = self.saved.told(raw, device=self.device)
            found = [dict(zip(told, each, strict=True)) for each in zip(*told.values(), strict=True)]
        else:
            found = self._judged(raw)
        ids = [each for asked in lot for each in (asked.ids or [None] * len(asked))]
        return [said if one is None else {"id": one, **said} for one, said in zip(ids, found, strict=True)]

    def _judged(self, raw: Raw) -> list[dict[str, Any]]:
        """Label and probabilities, and how foreign an example is and how undecided the memory, where that is known."""
        judged, names = self.saved.judge(raw, device=self.device), self.saved.classes
        found = [
            {"label": names[row.argmax()], "probabilities": dict(zip(names, row.tolist(), strict=True))}
            for row in judged.probabilities
        ]
        for name, values in (("foreign", judged.foreign), ("undecided", judged.undecided)):
            for said, value in zip(found, [] if values is None else values.tolist(), strict=values is not None):
                said[name] = value
        return found

    def model(self) -> dict[str, Any]:
        """What is served: names and versions, and the card; a folder that an encoder came from is not told."""
        record, card = self.saved.record, current_folder(self.folder) / "README.md"
        spec = record.spec
        shown = spec["encoder"]
        kind, colon, place = shown.partition(":")
        if colon:
            shown = f"{kind}:{Path(place).name}"
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        return {
            "name": self.folder.resolve().name,
            "task": self.saved.task,
            "takes": self.saved.encoder.takes,
            "labels": list(self.saved.classes),
            "method": spec["method"],
            "encoder": shown,
            **self.saved.parts,
            "trained": {"version": record.code["version"], "torch": record.machine["torch"]},
            "versions": {"holdfast": _release(), "torch": torch.__version__, "python": platform.python_version()},
            "card": text.replace(spec["encoder"], shown),
        }


def _release() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"
