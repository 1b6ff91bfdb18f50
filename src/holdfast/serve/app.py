"""The HTTP side: /predict, /health, /model, /metrics, and the page of all of them at /docs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.errors import BadInput, one_line
from holdfast.serve.batcher import Batcher
from holdfast.serve.metrics import CONTENT_TYPE, Metrics
from holdfast.serve.reading import Busy, TooLarge
from holdfast.serve.server import Service

PATHS = ("/predict", "/health", "/model", "/metrics", "/docs", "/openapi.json")
PAGE = Path(__file__).with_name("docs.html")
SAMPLES = {  # what the page offers to try
    "text": '"a superb thing"',
    "vector": "[0.5, 1.0, -2.0]",
    "image": '"iVBORw0KGgo..."',
    "sentence": '["a", "superb", "thing"]',
    "question": '{"question": "what is it?", "context": "It is a superb thing."}',
    "graph": '{"nodes": [[0], [1]], "edges": [[0, 1], [1, 0]]}',
}


def make_app(service: Service) -> FastAPI:
    """The application of one service; when it stops, what was asked before is answered."""
    metrics, told = Metrics(), service.model()
    batcher = Batcher(service.answer, service.limits, alone=service.alone, told=metrics.batch)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)

    title, release = f"Holdfast: {told['name']}", told["versions"]["holdfast"]
    app = FastAPI(
        title=title, version=release, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.add_middleware(_Measured, metrics=metrics)
    app.add_route("/predict", Predict(service, batcher), methods=["POST"])  # pyright: ignore[reportArgumentType]

    @app.get("/health", summary="Whether the server answers.")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model", summary="What is served: labels, versions, card.")
    async def model() -> dict[str, Any]:
        return told

    @app.get("/metrics", summary="Counts for Prometheus.")
    async def counts() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    described = get_openapi(title=title, version=release, routes=app.routes)
    described["paths"] = {"/predict": {"post": TOLD}, **described["paths"]}
    app.openapi = lambda: described
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made = page.from_string(PAGE.read_text(encoding="utf-8"))
    text = made.render(told=told, paths=described["paths"], example=SAMPLES[service.reader.kind])

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(text)

    for error, status in ((BadInput, 422), (TooLarge, 413), (Busy, 503), (Exception, 500)):
        app.add_exception_handler(error, _refuse(status))
    app.add_exception_handler(HTTPException, _unknown)
    return app


def _refuse(status: int) -> Any:
    async def handle(_: Request, error: Exception) -> JSONResponse:
        said = "the server failed at this request: its log says why" if status == 500 else str(error)
        return JSONResponse({"error": one_line(said)}, status_code=status)

    return handle


async def _unknown(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": f"{error.detail}: see /docs"}, status_code=error.status_code)


class _Measured:
    """Counts every request with its status and time."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def listen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, listen)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.request(path, status, time.perf_counter() - start)


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
