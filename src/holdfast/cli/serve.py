"""holdfast serve: a model folder behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import give_json, say


def serve(
    model: Annotated[Path, typer.Argument(help="A folder that `holdfast fit` wrote.", show_default=False)],
    host: Annotated[str, typer.Option(help="The address to bind; 0.0.0.0 lets other machines ask.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8000,
    device: options.Device = "auto",
    column: options.Column = None,
    max_batch: Annotated[int, typer.Option(help="Examples that are predicted at once.")] = 64,
    max_wait: Annotated[float, typer.Option(help="Milliseconds that a request may wait for others to join.")] = 5.0,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.")] = 8_000_000,
    max_examples: Annotated[int, typer.Option(help="Examples of a request.")] = 256,
    max_text: Annotated[int, typer.Option(help="Characters of a text, nodes or edges of a graph.")] = 20_000,
    max_seconds: Annotated[float, typer.Option(help="Seconds that a request may take.")] = 30.0,
    json: options.Json = False,
) -> None:
    """Answer predictions over HTTP: POST /predict; GET /health, /model, /metrics; every path is told at /docs.

    A body is `{"examples": [...]}` or `{"example": ...}`. An example is a text, two texts, words, a question and its
    text, a list of numbers, an image file in base64, a graph, or an object with the columns of a table. Requests that
    arrive together are predicted together.

    Examples:

    - `holdfast serve models/reviews`

    - `holdfast serve models/reviews --host 0.0.0.0 --port 80 --max-text 5000`

    SIGINT and SIGTERM end it when what is under way is answered.
    """
    from holdfast.serve.reading import Limits
    from holdfast.serve.server import Service
    from holdfast.serve.server import serve as run

    limits = Limits(
        body=max_body, examples=max_examples, text=max_text, seconds=max_seconds, batch=max_batch, wait=max_wait / 1000
    )
    service = Service(model, limits=limits, device=device, columns=options.pairs(column))

    def ready(address: str) -> None:
        if json:
            give_json({"address": address, "model": service.model()["name"]})
        else:
            say(f"{service.model()['name']} answers at {address} (see {address}/docs)")

    run(service, host=host, port=port, ready=ready)
    if not json:
        say("stopped; every request was answered")
