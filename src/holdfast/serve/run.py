"""serve: bind, answer, and stop at a signal when what is under way is done."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.serve.service import Service

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
