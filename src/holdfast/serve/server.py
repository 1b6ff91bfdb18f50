"""HTTP server of a model folder."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.serve.service import Service

GRACE = 10  # extra seconds to close connections


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
