"""HTTP server of a model folder."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import BadInput
from holdfast.serve.service import Service

if TYPE_CHECKING:
    from holdfast.serve.access import Access  # imports starlette, which is an extra

GRACE = 10  # extra seconds to close connections


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Files of a TLS certificate and its private key."""

    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            files = f"{self.certificate} and {self.key}"
            raise BadInput(
                f"{files} are not a TLS certificate and its key in PEM format ({error}): check both"
            ) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def serve(
    service: Service, *, host: str, port: int, ready: Callable[[str], None], access: Access | None = None,
    tls: Certificate | None = None,
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM; `ready` is called with the address."""
    with _bound(host, port) as listening:
        server = _server(service, access, tls)
        stops = (signal.SIGINT, signal.SIGTERM)

        def stop(number: int, frame: Any) -> None:
            server.should_exit = True  # uvicorn installs its own handlers and re-raises the signal when it stops

        previous = {number: signal.signal(number, stop) for number in stops}
        try:
            ready(_address(listening, tls))
            server.run(sockets=[listening])
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def serving(service: Service, access: Access | None = None) -> Iterator[str]:
    """Run a server on a free local port in a thread for the duration of the block; yield its address."""
    with _bound("127.0.0.1", 0) as listening:
        server = _server(service, access)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="holdfast-server")
        thread.start()
        try:
            yield _address(listening)
        finally:
            server.should_exit = True
            thread.join()


def _server(service: Service, access: Access | None, tls: Certificate | None = None) -> Any:
    try:
        import uvicorn

        from holdfast.serve.app import make_app
        from holdfast.serve.connections import connection_class
    except ImportError as error:
        raise BadInput("serving needs Starlette, uvicorn and more: run `pip install 'holdfast[serve]'`") from error
    config = uvicorn.Config(
        make_app(service, access), http=connection_class(), ws="none", log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, timeout_graceful_shutdown=int(service.limits.seconds) + GRACE,
        ssl_certfile=None if tls is None else str(tls.certificate), ssl_keyfile=None if tls is None else str(tls.key),
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


def _address(listening: socket.socket, tls: Certificate | None = None) -> str:
    host, port = listening.getsockname()[:2]
    return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
