"""The HTTP side: /predict, /health, /model, /metrics, and the page of all of them at /docs."""

from __future__ import annotations

import asyncio
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
from holdfast.serve.limits import Busy, TooLarge
from holdfast.serve.metrics import CONTENT_TYPE, Metrics
from holdfast.serve.predict import TOLD, Predict
from holdfast.serve.service import Service

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
