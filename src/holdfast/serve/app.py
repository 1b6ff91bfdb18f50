"""The HTTP side: /predict, /health, /model, /metrics, and the page of all of them at /docs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.errors import BadInput
from holdfast.serve.batcher import Batcher
from holdfast.serve.limits import Busy, TooLarge
from holdfast.serve.metrics import CONTENT_TYPE, Metrics
from holdfast.serve.service import Service

PATHS = ("/predict", "/health", "/model", "/metrics", "/docs", "/openapi.json")
_EXAMPLE = {
    "description": "A text, two texts of a pair, a list of numbers, an image file in base64, or an object with columns."
}
_BODY = {
    "oneOf": [
        {"type": "object", "required": ["examples"], "properties": {"examples": {"type": "array", "items": _EXAMPLE}}},
        {"type": "object", "required": ["example"], "properties": {"example": _EXAMPLE}},
    ]
}
_ASKS = {"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    413: {"description": "Larger than the server takes."},
    422: {"description": "The examples are wrong; one sentence says how."},
    503: {"description": "Too much to do, too slow, or stopping."},
}


def make_app(service: Service) -> FastAPI:
    """The application of one service; when it stops, what was asked before is answered."""
    metrics, limits = Metrics(), service.limits
    batcher = Batcher(service.answer, limits, alone=service.alone, told=metrics.batch)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)

    told = service.model()
    app = FastAPI(title=f"Holdfast: {told['name']}", version=told["versions"]["holdfast"], lifespan=lifespan)
    app.add_middleware(_Measured, metrics=metrics)

    @app.post("/predict", openapi_extra=_ASKS, responses=_REFUSALS, summary="Label one or many examples.")
    async def predict(request: Request) -> Response:
        try:
            async with asyncio.timeout(limits.seconds):
                body = await _body(request, limits.body)
                slow = service.reader.kind == "image"  # decoding would keep others waiting
                asked = await asyncio.to_thread(service.reader.read, body) if slow else service.reader.read(body)
                found = await asyncio.wrap_future(batcher.submit(asked))
        except TimeoutError as error:
            raise Busy(f"no answer within {limits.seconds:g} seconds: send fewer examples or ask later") from error
        return JSONResponse({"predictions": found})

    @app.get("/health", summary="Whether the server answers.")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model", summary="What is served: labels, versions, card.")
    async def model() -> dict[str, Any]:
        return told

    @app.get("/metrics", summary="Counts for Prometheus.")
    async def counts() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    for error, status in ((BadInput, 422), (TooLarge, 413), (Busy, 503), (Exception, 500)):
        app.add_exception_handler(error, _refuse(status))
    app.add_exception_handler(HTTPException, _unknown)
    return app


def _refuse(status: int) -> Any:
    async def handle(_: Request, error: Exception) -> JSONResponse:
        said = "the server failed at this request: its log says why" if status == 500 else str(error)
        return JSONResponse({"error": " ".join(said.split())}, status_code=status)

    return handle


async def _unknown(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": f"{error.detail}: see /docs"}, status_code=error.status_code)


async def _body(request: Request, most: int) -> bytes:
    """The body, refused as soon as it is known to be too large."""
    pieces, size = [], 0
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > most:
        raise TooLarge(f"the body has more than {most} bytes: send fewer or smaller examples")
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise TooLarge(f"the body has more than {most} bytes: send fewer or smaller examples")
        pieces.append(piece)
    return b"".join(pieces)


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
