"""Clients of a server, all at once, in a process of their own: `python -m holdfast.bench.clients` reads a plan as JSON.

It imports nothing but the standard library, writes requests before the clock starts and looks at answers after it has
stopped, so that it takes little of a machine that it shares with the server.
"""

from __future__ import annotations

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
    """One connection, kept open, with at most one request under way."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.got = b""

    def answer(self) -> bytes | None:
        """The whole answer, None where more of it is to come."""
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("the server closed the connection before its answer")
        self.got += piece
        head, found, content = self.got.partition(END)
        if not found or len(content) < _length(head):
            return None
        whole, self.got = self.got, b""
        return whole


def ask(host: str, port: int, bodies: Sequence[str], *, clients: int) -> dict[str, Any]:
    """Every body once, by so many clients; seconds, the answers in the order they came in, errors."""
    made = [_request(host, body) for body in bodies]
    waiting, answers, errors = iter(made), [], []
    with selectors.DefaultSelector() as ready:
        for each in [_Client(host, port) for _ in range(clients)]:
            ready.register(each.socket, selectors.EVENT_READ, each)
        start = time.perf_counter()
        for key in list(ready.get_map().values()):
            _go_on(ready, key.data, waiting)
        while ready.get_map():
            there = ready.select(PATIENCE)
            if not there:
                errors.append(f"no answer for {PATIENCE:g} seconds")
                break
            for key, _ in there:
                try:
                    answer = key.data.answer()
                    if answer is not None:
                        answers.append(answer)
                        _go_on(ready, key.data, waiting)
                except (OSError, ValueError) as error:
                    errors.append(repr(error))
                    _leave(ready, key.data)
        seconds = time.perf_counter() - start
        for key in list(ready.get_map().values()):
            _leave(ready, key.data)
    errors += [fault for answer in answers if (fault := _fault(answer))]
    return {"seconds": seconds, "errors": errors, "unanswered": len(bodies) - len(answers)}


def _request(host: str, body: str) -> bytes:
    content = body.encode()
    head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _go_on(ready: selectors.BaseSelector, client: _Client, waiting: Iterator[bytes]) -> None:
    """The next request, or the end of this client where there is none."""
    following = next(waiting, None)
    if following is None:
        _leave(ready, client)
    else:
        client.socket.sendall(following)


def _leave(ready: selectors.BaseSelector, client: _Client) -> None:
    ready.unregister(client.socket)
    client.socket.close()


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))


def _fault(answer: bytes) -> str:
    """What is wrong with an answer; nothing where it holds one prediction."""
    head, _, content = answer.partition(END)
    status = head.split(None, 2)[1]
    if status == b"200" and len(json.loads(content).get("predictions", ())) == 1:
        return ""
    return f"{status.decode()}: {content[:200].decode()}"


def main() -> None:
    """The plan from stdin, what was found to stdout."""
    plan = json.load(sys.stdin)
    sys.stdout.write(json.dumps(ask(plan["host"], plan["port"], plan["bodies"], clients=plan["clients"])))


if __name__ == "__main__":
    main()
