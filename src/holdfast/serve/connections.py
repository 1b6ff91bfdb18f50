"""Connections of the server: a deadline and a size for headers, and a limit on their number."""

import asyncio
import itertools
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADER_SECONDS = 10.0  # from the first byte of a request, or from the start of a connection, to the end of its headers
HEADER_BYTES = 1 << 16
MAX_CONNECTIONS = 1024
SPARE_FILES = 64  # file descriptors that are not for connections

_Base: Any = AutoHTTPProtocol
_numbers = itertools.count()  # in the order of their start; the clock of a loop may not change between two of them


class Connection(_Base):
    """HTTP connection that is closed if its headers are late or too large.

    If too many connections are open, the oldest one without a request is closed, so that clients which only open
    connections do not exclude others.
    """

    limit = MAX_CONNECTIONS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._number, self._timer, self._unfinished = next(_numbers), None, 0

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        active = [connection for connection in self.connections if not connection.transport.is_closing()]
        if len(active) > self.limit:
            idle = [connection for connection in active if not connection.busy]
            min(idle, key=lambda connection: connection._number, default=self).transport.abort()
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if not self.busy:
            self._start_timer()
        super().data_received(data)
        if self.busy:
            self._stop_timer()
            self._unfinished = 0
            return
        self._unfinished += len(data)
        if self._unfinished > HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers exceed {HEADER_BYTES} bytes.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if not self.busy:
            self.transport.abort()


def connection_class() -> type[Connection]:
    """Return the class of connections with a limit that the file descriptors of this process allow."""
    return type("Connection", (Connection,), {"limit": max(1, min(MAX_CONNECTIONS, _max_files() - SPARE_FILES))})


def _max_files() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return MAX_CONNECTIONS + SPARE_FILES
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS + SPARE_FILES if files == resource.RLIM_INFINITY else files
