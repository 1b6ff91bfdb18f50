"""HTTP application: /predict, /health, /model, /metrics, and their documentation at /docs."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.errors import BadInput, one_line
from holdfast.serve.access import Access, Guard
from holdfast.serve.batcher import Batcher
from holdfast.serve.metrics import CONTENT_TYPE, Metrics
from holdfast.serve.requests import Busy, TooLarge
from holdfast.serve.service import Service

PATHS = ("/predict", "/health", "/model", "/metrics", "/docs", "/openapi.json")
PAGE = Path(__file__).with_name("docs.html")
SAMPLES = {  # example bodies for the documentation
    "text": '"a superb thing"',
    "vector": "[0.5, 1.0, -2.0]",
    "image": '"iVBORw0KGgo..."',
    "sentence": '["a", "superb", "thing"]',
    "question": '{"question": "what is it?", "context": "It is a superb thing."}',
    "graph": '{"nodes": [[0], [1]], "edges": [[0, 1], [1, 0]]}',
    **dict.fromkeys(("table", "mixed"), '{"age": 63, "sex": "female", "ca": null}'),
}

STATUSES: dict[type[Exception], int] = {BadInput: 422, TooLarge: 413, Busy: 503}


def make_app(service: Service, access: Access | None = None) -> FastAPI:
    """Return the application of one service; pending requests are answered before it stops."""
    metrics, description, drift = Metrics(), service.model(), service.drift
    batcher = Batcher(service.answer, service.limits, alone=service.alone, on_batch=metrics.batch)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)
        predict.close()
        if drift is not None:
            await asyncio.to_thread(drift.close)

    title, release = f"Holdfast: {description['name']}", description["versions"]["holdfast"]
    paths: dict[str, Any] = {"docs_url": None, "redoc_url": None, "redirect_slashes": False}
    app = FastAPI(title=title, version=release, lifespan=lifespan, **paths)
    predict = Predict(service, batcher)
    app.add_middleware(_Direct, predict=predict)
    app.add_middleware(Guard, access=access or Access())
    app.add_middleware(_RequestMetrics, metrics=metrics)
    app.add_route("/predict", predict, methods=["POST"])  # pyright: ignore[reportArgumentType]

    @app.get("/health", summary="Health of the server.")
    async def health() -> dict[str, Any]:
        return {"status": "ok", **({} if drift is None else {"watch": drift.state()})}

    @app.get("/model", summary="Labels, versions and card of the model.")
    async def model() -> dict[str, Any]:
        return description

    @app.get("/metrics", summary="Metrics for Prometheus.")
    async def counts() -> Response:
        return Response(metrics.text(None if drift is None else drift.gauges()), media_type=CONTENT_TYPE)

    schema = get_openapi(title=title, version=release, routes=app.routes)
    schema["paths"] = {"/predict": {"post": predict_schema(description.get("schema"))}, **schema["paths"]}
    app.openapi = lambda: schema
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(PAGE.read_text(encoding="utf-8"))
    text = template.render(model=description, paths=schema["paths"], example=SAMPLES[service.parser.kind])

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(text)

    for error, status in (*STATUSES.items(), (Exception, 500)):
        app.add_exception_handler(error, _error_handler(status))
    app.add_exception_handler(HTTPException, _http_error)
    return app


def _error_handler(status: int) -> Any:
    async def handle(_: Request, error: Exception) -> JSONResponse:
        return _error_answer(error, status)

    return handle


def _error_answer(error: Exception, status: int) -> JSONResponse:
    message = "internal error: see the log of the server" if status == 500 else str(error)
    return JSONResponse({"error": one_line(message)}, status_code=status)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": f"{error.detail}: see /docs"}, status_code=error.status_code)


class _Direct:
    """Answer POST /predict without the router, which would take a third of the time of a request."""

    def __init__(self, app: ASGIApp, predict: ASGIApp) -> None:
        self.app, self.predict = app, predict

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/predict" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        try:
            await self.predict(scope, receive, send)
        except tuple(STATUSES) as error:
            status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
            await _error_answer(error, status)(scope, receive, send)


class _RequestMetrics:
    """Count every request with its status and duration."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, observe)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.request(path, status, time.perf_counter() - start)


LARGE_BODY = 1 << 16  # larger bodies are parsed outside the event loop, in bytes
SLOW = ("image", "graph")  # kinds of examples that are always parsed outside the event loop
PARSERS = 2  # requests that are parsed outside the event loop at the same time

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

EXAMPLE = {
    "description": "A text, a pair of texts, words, a question with its context, a list of numbers, a base64 image, "
    "a graph, or an object with columns."
}


def predict_schema(row: dict[str, Any] | None) -> dict[str, Any]:
    """Return the description of /predict; `row` is the JSON schema of a row of a table."""
    example = EXAMPLE if row is None else row
    body = {
        "oneOf": [
            {"type": "object", "required": [name], "properties": {name: schema}}
            for name, schema in (("examples", {"type": "array", "items": example}), ("example", example))
        ]
    }
    return {**PREDICT_SCHEMA, "requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}


PREDICT_SCHEMA: dict[str, Any] = {
    "summary": "Predict one or several examples.",
    "responses": {
        "200": {"description": "One prediction per example, in order."},
        "401": {"description": "The token is missing or wrong."},
        "413": {"description": "The request exceeds a limit."},
        "415": {"description": "The content type is not application/json."},
        "422": {"description": "The examples are invalid; the error names the problem."},
        "429": {"description": "Too many requests from this address."},
        "503": {"description": "Overloaded, timed out, or stopping."},
    },
}


class Predict:
    """ASGI application of POST /predict; its errors are answered by the surrounding application."""

    def __init__(self, service: Service, batcher: Batcher) -> None:
        self.parser, self.limits, self.batcher = service.parser, service.limits, batcher
        self.pool = ThreadPoolExecutor(PARSERS, thread_name_prefix="holdfast-parser")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seconds = self.limits.seconds
        until = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                predictions = await self._answers(await _body(scope, receive, self.limits.body), until)
        except TimeoutError as error:
            raise Busy(f"no answer within {seconds:g} seconds: send fewer examples or retry later") from error
        await Response(_encode({"predictions": predictions}), media_type="application/json")(scope, receive, send)

    async def _answers(self, body: bytes, until: float) -> list[Any]:
        if self.parser.kind in SLOW or len(body) > LARGE_BODY:
            parse = partial(self.parser.parse, body, until=until)
            request = await asyncio.get_running_loop().run_in_executor(self.pool, parse)
        else:
            request = self.parser.parse(body)
        return await self.batcher.submit(request)

    def close(self) -> None:
        """End the parsing threads after their present example; requests that wait are dropped."""
        self.pool.shutdown(wait=False, cancel_futures=True)


async def _body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the body; raise as soon as it exceeds the limit."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"").lstrip(b"0")
    too_large = declared.isdigit() and (len(declared) > 18 or int(declared) > limit)
    chunks, size, more = [], limit + 1 if too_large else 0, True
    while more and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadInput("the connection was closed before the body was complete: send it again")
        chunks.append(message.get("body", b""))
        size, more = size + len(chunks[-1]), message.get("more_body", False)
    if size > limit:
        raise TooLarge(f"the body exceeds {limit} bytes: send fewer or smaller examples")
    return b"".join(chunks)
