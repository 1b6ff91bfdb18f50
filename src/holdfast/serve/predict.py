"""POST /predict as a plain ASGI application, since it is what a server does all day.

It takes a body, hands its examples to the batches, and writes their answers; layers between would cost more than that.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.core.errors import BadInput
from holdfast.serve.batcher import Batcher
from holdfast.serve.limits import Busy, TooLarge
from holdfast.serve.service import Service

LONG = 1 << 16  # bytes of a body that are read beside the loop, so that others need not wait

_written = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

EXAMPLE = {
    "description": "A text, two texts of a pair, words, a question and its text, a list of numbers, an image file in "
    "base64, a graph, or an object with columns."
}
BODY = {
    "oneOf": [
        {"type": "object", "required": ["examples"], "properties": {"examples": {"type": "array", "items": EXAMPLE}}},
        {"type": "object", "required": ["example"], "properties": {"example": EXAMPLE}},
    ]
}
TOLD: dict[str, Any] = {
    "summary": "What the model says of one or many examples.",
    "requestBody": {"required": True, "content": {"application/json": {"schema": BODY}}},
    "responses": {
        "200": {"description": "An answer to each example, in their order."},
        "413": {"description": "Larger than the server takes."},
        "422": {"description": "The examples are wrong; one sentence says how."},
        "503": {"description": "Too much to do, too slow, or stopping."},
    },
}


class Predict:
    """Answers the bodies of requests; what is wrong is raised, and told by the application around it."""

    def __init__(self, service: Service, batcher: Batcher) -> None:
        self.reader, self.limits, self.batcher = service.reader, service.limits, batcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seconds = self.limits.seconds
        try:
            async with asyncio.timeout(seconds):
                found = await self._answers(await _body(scope, receive, self.limits.body))
        except TimeoutError as error:
            raise Busy(f"no answer within {seconds:g} seconds: send fewer examples or ask later") from error
        await Response(_written({"predictions": found}), media_type="application/json")(scope, receive, send)

    async def _answers(self, body: bytes) -> list[Any]:
        slow = self.reader.kind == "image" or len(body) > LONG
        asked = await asyncio.to_thread(self.reader.read, body) if slow else self.reader.read(body)
        return await self.batcher.submit(asked)


async def _body(scope: Scope, receive: Receive, most: int) -> bytes:
    """The body, refused as soon as it is known to be too large."""
    said = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    pieces, size, more = [], int(said) if said.isdigit() and int(said) > most else 0, True
    while more and size <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadInput("the connection was closed before the body was whole: send it again")
        pieces.append(message.get("body", b""))
        size, more = size + len(pieces[-1]), message.get("more_body", False)
    if size > most:
        raise TooLarge(f"the body has more than {most} bytes: send fewer or smaller examples")
    return b"".join(pieces)
