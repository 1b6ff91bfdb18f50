"""Clients of a server, all at once, in a process of their own: `python -m holdfast.bench.clients` reads a plan as JSON.

It imports nothing but the standard library, so that the process is light and takes little of the machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any


async def ask(host: str, port: int, bodies: Sequence[str], *, clients: int) -> dict[str, Any]:
    """Every body once, by so many clients, each with a connection of its own that it keeps; seconds and errors."""
    waiting = iter(bodies)
    errors: list[str] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for body in waiting:
            content = body.encode()
            head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
            status, answer = await _answer(reader)
            if status != 200 or "predictions" not in json.loads(answer):
                errors.append(f"{status}: {answer[:200]}")
        writer.close()

    start = time.perf_counter()
    ended = await asyncio.gather(*(client() for _ in range(clients)), return_exceptions=True)
    seconds = time.perf_counter() - start
    errors += [repr(each) for each in ended if each is not None]
    return {"seconds": seconds, "errors": errors, "unasked": sum(1 for _ in waiting)}


async def _answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in head if line.startswith("content-length:"))
    return int(head[0].split()[1]), (await reader.readexactly(length)).decode()


def main() -> None:
    """The plan from stdin, what was found to stdout."""
    plan = json.load(sys.stdin)
    sys.stdout.write(json.dumps(asyncio.run(ask(plan["host"], plan["port"], plan["bodies"], clients=plan["clients"]))))


if __name__ == "__main__":
    main()
