"""HTTP application: /predict, /health, /model, /metrics, and their documentation at /docs."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.errors import BadInput, one_line
from holdfast.serve.access import Access, Guard
from holdfast.serve.batcher import Batcher
from holdfast.serve.metrics import CONTENT_TYPE, Metrics
from holdfast.serve.requests import Busy, TooLarge
from holdfast.serve.service import Service

PAGE, SCHEMA = (Path(__file__).with_name(name) for name in ("docs.html", "openapi.json"))
SAMPLES = {  # example bodies for the documentation
    "text": '"a superb thing"',
    "vector": "[0.5, 1.0, -2.0]",
    "image": '"iVBORw0KGgo..."',
    "sentence": '["a", "superb", "thing"]',
    "question": '{"question": "what is it?", "context": "It is a superb thing."}',
    "graph": '{"nodes": [[0], [1]], "edges": [[0, 1], [1, 0]]}',
    **dict.fromkeys(("table", "mixed"), '{"age": 63, "sex": "female", "ca": null}'),
}
STATUSES: dict[type[Exception], int] = {TooLarge: 413, BadInput: 422, Busy: 503}
LARGE_BODY = 1 << 16  # larger bodies are parsed outside the event loop, in bytes
SLOW = ("image", "graph")  # kinds of examples that are always parsed outside the event loop
PARSERS = 2  # requests that are parsed outside the event loop at the same time

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def make_app(service: Service, access: Access | None = None) -> Starlette:
    """Return the application of one service; pending requests are answered before it stops."""
    description, drift, parser, limits = service.model(), service.drift, service.parser, service.limits
    metrics = Metrics() if drift is None else Metrics(drift.gauges)
    batcher = Batcher(service.answer, limits, alone=service.alone, on_batch=metrics.batch)
    pool = ThreadPoolExecutor(PARSERS, thread_name_prefix="holdfast-parser")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)
        # the threads end after their present example, and requests that wait are dropped
        pool.shutdown(wait=False, cancel_futures=True)
        if drift is not None:
            await asyncio.to_thread(drift.close)

    async def predict(request: Request) -> Response:
        until = time.monotonic() + limits.seconds
        try:
            async with asyncio.timeout(limits.seconds):
                body = await _body(request, limits.body)
                parse = partial(parser.parse, body, until=until)
                if parser.kind in SLOW or len(body) > LARGE_BODY:
                    parsed = await asyncio.get_running_loop().run_in_executor(pool, parse)
                else:
                    parsed = parse()
                predictions = await batcher.submit(parsed)
        except TimeoutError as error:
            raise Busy(f"no answer within {limits.seconds:g} seconds: send fewer examples or retry later") from error
        return Response(_encode({"predictions": predictions}), media_type="application/json")

    schema = _schema(description)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(PAGE.read_text(encoding="utf-8"))
    page = template.render(model=description, paths=schema["paths"], example=SAMPLES[parser.kind])

    answers: dict[str, Callable[[], Response]] = {
        "/health": lambda: JSONResponse({"status": "ok", **({} if drift is None else {"watch": drift.state()})}),
        "/model": lambda: JSONResponse(description),
        "/metrics": lambda: Response(metrics.text(), media_type=CONTENT_TYPE),
        "/docs": lambda: HTMLResponse(page),
        "/openapi.json": lambda: JSONResponse(schema),
    }
    routes = [Route(path, _endpoint(answer)) for path, answer in answers.items()]
    app = Starlette(
        routes=[Route("/predict", predict, methods=["POST"]), *routes],
        middleware=[
            Middleware(_RequestMetrics, metrics=metrics, paths=("/predict", *answers)),
            Middleware(Guard, access=access or Access()),
        ],
        exception_handlers=dict.fromkeys((*STATUSES, HTTPException, Exception), _error_answer),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _endpoint(answer: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint whose answer does not depend on the request."""

    async def endpoint(_: Request) -> Response:
        return answer()

    return endpoint


def _schema(description: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of all paths, with the columns of the model if it has any."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    schema["info"] = {
        "title": f"Holdfast: {description['name']}", "version": description["versions"]["holdfast"]
    }  # fmt: skip
    schemas = schema["components"]["schemas"]
    schemas["Example"] = description.get("schema", schemas["Example"])
    return schema


async def _error_answer(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": f"{error.detail}: see /docs"}, status_code=error.status_code)
    status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 500)
    message = "internal error: see the log of the server" if status == 500 else str(error)
    return JSONResponse({"error": one_line(message)}, status_code=status)


async def _body(request: Request, limit: int) -> bytes:
    """Return the body; raise as soon as it exceeds the limit."""
    declared = request.headers.get("content-length", "").lstrip("0")
    message = f"the body exceeds {limit} bytes: send fewer or smaller examples"
    if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
        raise TooLarge(message)
    chunks, size = list[bytes](), 0
    try:
        async for chunk in request.stream():
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise TooLarge(message)
    except ClientDisconnect as error:
        raise BadInput("the connection was closed before the body was complete: send it again") from error
    return b"".join(chunks)


class _RequestMetrics:
    """Count every request with its status and duration."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Sequence[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

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
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.request(path, status, time.perf_counter() - start)
