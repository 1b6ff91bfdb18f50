"""Concurrent clients of a server in a separate process: `python -m lab.benchmarks.clients` reads a plan from stdin.

Imports only the standard library, builds requests before timing and checks answers after it, so that the clients take
little time on a machine they share with the server.
"""

import json
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

END = b"\r\n\r\n"
PATIENCE = 60.0  # seconds without a byte from any connection


class _Client:
    """One persistent connection with at most one pending request."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""

    def answer(self) -> bytes | None:
        """Return the complete answer, or None if more bytes are expected."""
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("the server closed the connection before its answer")
        self.received += piece
        head, separator, content = self.received.partition(END)
        if not separator or len(content) < _length(head):
            return None
        answer, self.received = self.received, b""
        return answer


def ask(host: str, port: int, bodies: Sequence[str], *, clients: int) -> dict[str, Any]:
    """Send every body once with this number of clients; return seconds, errors and the number of missing answers."""
    requests = [_request(host, body) for body in bodies]
    waiting, answers, errors = iter(requests), [], []
    with selectors.DefaultSelector() as ready:
        for client in [_Client(host, port) for _ in range(clients)]:
            ready.register(client.socket, selectors.EVENT_READ, client)
        start = time.perf_counter()
        for key in list(ready.get_map().values()):
            _send_next(ready, key.data, waiting)
        while ready.get_map():
            events = ready.select(PATIENCE)
            if not events:
                errors.append(f"no answer for {PATIENCE:g} seconds")
                break
            for key, _ in events:
                try:
                    answer = key.data.answer()
                    if answer is not None:
                        answers.append(answer)
                        _send_next(ready, key.data, waiting)
                except (OSError, ValueError) as error:
                    errors.append(repr(error))
                    _close(ready, key.data)
        seconds = time.perf_counter() - start
        for key in list(ready.get_map().values()):
            _close(ready, key.data)
    errors += [fault for answer in answers if (fault := _fault(answer))]
    return {"seconds": seconds, "errors": errors, "unanswered": len(bodies) - len(answers)}


def _request(host: str, body: str) -> bytes:
    content = body.encode()
    head = (
        f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _send_next(ready: selectors.BaseSelector, client: _Client, waiting: Iterator[bytes]) -> None:
    """Send the next request, or close the client if none is left."""
    request = next(waiting, None)
    if request is None:
        _close(ready, client)
    else:
        client.socket.sendall(request)


def _close(ready: selectors.BaseSelector, client: _Client) -> None:
    ready.unregister(client.socket)
    client.socket.close()


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))


def _fault(answer: bytes) -> str:
    """Return an error message unless the answer holds exactly one prediction."""
    head, _, content = answer.partition(END)
    status = head.split(None, 2)[1]
    if status == b"200" and len(json.loads(content).get("predictions", ())) == 1:
        return ""
    return f"{status.decode()}: {content[:200].decode()}"


def main() -> None:
    """Read the plan from stdin and write the outcome to stdout."""
    plan = json.load(sys.stdin)
    sys.stdout.write(json.dumps(ask(plan["host"], plan["port"], plan["bodies"], clients=plan["clients"])))


if __name__ == "__main__":
    main()
