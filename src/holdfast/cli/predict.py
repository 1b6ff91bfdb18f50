"""holdfast predict, export and serve: use a trained model folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options
from holdfast.cli.console import print_json, say
from holdfast.core.errors import BadInput

if TYPE_CHECKING:
    from holdfast.prediction.predict import SetSummary


Coverage = Annotated[
    float | None,
    options.option(
        "Add prediction sets, or intervals for numbers, that contain the truth with this probability, such as 0.9; "
        "calibrated on left-out domains."
    ),
]
SetMethod = Annotated[
    str,
    typer.Option(
        help="Calibration of the sets: split (one threshold), mondrian (one per known domain, and the largest for "
        "others) or weighted (by similarity to the new data)."
    ),
]


def predict(
    model: options.Model,
    data: options.Data,
    out: Annotated[Path, typer.Option(help="File to write; .csv, .jsonl or .parquet.")] = Path("predictions.csv"),
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="Probabilities of the network without temperature scaling.")
    ] = False,
    abstain_above: Annotated[
        float | None, options.option("Give no label to examples whose `foreign` percentile is above this.")
    ] = None,
    coverage: Coverage = None,
    sets: SetMethod = "split",
    device: options.Device = "auto",
    column: options.Column = None,
    with_: Annotated[
        str, options.option("Comma separated columns of a table to copy behind the predictions.", "--with")
    ] = "",
    skip_bad: options.SkipBad = False,
    json: options.Json = False,
) -> None:
    """Predict new examples: id, label, one probability per class, and how far the example is from the training data.

    A regression writes `prediction` and the ends `low` and `high` of its interval; a multi-label model writes `labels`.

    `foreign` is the percentile of the example's distance to the training data, among validation examples. For models
    with a memory, `undecided` is the percentile of the entropy of the memory read. Tables of any length are streamed.

    With --coverage, `set` lists the labels of the prediction set and `set_size` is their number; `low` and `high` are
    the ends of an interval. It needs a model of `compare` or of `fit --left-out`.

    Other tasks write responses (id, response), tags (id, tokens, tags), answers (id, answer, score), or masked words
    (id, words, scores). No domain, label, response, tag or answer column is needed.

    Examples:

    - `holdfast predict models/reviews new.csv --out predictions.csv`

    - `holdfast predict models/reviews new.parquet --out predictions.parquet --column text=body`

    - `holdfast predict models/reviews new.csv --abstain-above 99 --out predictions.csv`

    - `holdfast predict models/reviews new.csv --coverage 0.9 --out predictions.csv`

    - `holdfast predict models/reviews new.csv --coverage 0.9 --sets weighted --out predictions.csv`

    - `holdfast predict models/reviews new.csv --with text,price --skip-bad --out predictions.csv`

    - `holdfast predict models/names new.conll --out tags.jsonl`
    """
    from holdfast.prediction.predict import predict as run

    result = run(
        model, data, out, columns=options.pairs(column), device=device,
        calibrated=not uncalibrated, abstain_above=abstain_above, carry=options.words(with_), skip_bad=skip_bad,
        coverage=coverage, sets=sets,
    )  # fmt: skip
    if json:
        fields = ("counts", "accuracy", "scores", "scored", "abstained")
        document = {"predictions": result.examples, **{name: getattr(result, name) for name in fields}}
        extra = {"sets": None if result.sets is None else result.sets.json()}
        print_json({**document, **extra, "notes": result.notes, "out": result.path})
        return
    say(*result.notes)
    counts = ", ".join(f"{label}: {count}" for label, count in result.counts.items())
    say(counts or f"{result.what}: {result.examples}")
    if abstain_above is not None:
        say(f"without a prediction because `foreign` is above {abstain_above:g}: {result.abstained}")
    if result.accuracy is not None:
        say(f"accuracy {result.accuracy:.3f} on {result.scored} examples with a label the model knows")
    if result.scores:
        errors = ", ".join(f"{name} {value:.4g}" for name, value in result.scores.items())
        say(f"{errors} on {result.scored} examples with a label")
    if result.sets is not None:
        say(*set_sentences(result.sets))
    say(f"predictions: {result.path}")


def set_sentences(sets: SetSummary) -> list[str]:
    """Describe the sets of a file, and the coverage that was measured on left-out domains."""
    summary, sentences = sets.json(), []
    if summary["mean_size"] is not None:
        sentences.append(f"prediction sets ({sets.method}): mean size {summary['mean_size']:.4g}")
    if summary["covered"] is not None:
        sentences.append(f"they contain {summary['covered']:.1%} of {sets.labelled} known labels")
    if sets.unbounded:
        sentences.append(f"without an interval because no calibration example is similar: {sets.unbounded}")
    if sets.measured:
        domains = ", ".join(f"{each['domain']} {each['coverage']:.1%}" for each in sets.measured)
        sentences.append(f"coverage {sets.coverage:.1%} is nominal; measured on left-out domains: {domains}")
    return sentences


def export(
    model: options.Model,
    out: Annotated[Path, options.argument("File to write: .onnx or .pt2.")],
    format: Annotated[str, typer.Option(help="onnx, or torch for torch.export.")] = "onnx",
    pairs: Annotated[bool, typer.Option("--pairs", help="The model was trained on text pairs.")] = False,
    json: options.Json = False,
) -> None:
    """Export a classifier or a regression, including its memories, to ONNX or torch.export for batches of any size.

    A JSON file next to it describes inputs, labels and preprocessing; text encoders also get their tokenizer. The
    exported program is run once and its predictions are compared with those of the model.

    Examples:

    - `holdfast export models/reviews reviews.onnx`

    - `holdfast export models/reviews reviews.pt2 --format torch`
    """
    from holdfast.prediction.export import export as run

    result = run(model, out, format=format, pairs=pairs)
    if json:
        print_json(asdict(result))
        return
    say(f"predictions differ from the model's by at most {result.difference:.1g}")
    say(f"program: {result.program} (inputs and preprocessing: {result.about})")


def serve(
    model: options.Model,
    host: Annotated[str, typer.Option(help="Address to bind; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.")] = 8000,
    device: options.Device = "auto",
    column: options.Column = None,
    coverage: Coverage = None,
    sets: SetMethod = "split",
    watch: Annotated[
        bool, typer.Option("--watch", help="Test the predicted examples for drift, with gauges in /metrics.")
    ] = False,
    log: Annotated[
        Path | None,
        options.option(
            "Folder for a log of features and predictions of the latest 20,000 examples, never of their inputs, that "
            "`holdfast watch` reads; implies --watch."
        ),
    ] = None,
    window: Annotated[int, typer.Option(help="With --watch: examples per test.")] = 500,
    max_batch: Annotated[int, typer.Option(help="Examples per forward pass.")] = 64,
    max_wait: Annotated[float, typer.Option(help="Milliseconds a request waits to be batched with others.")] = 5.0,
    max_body: Annotated[int, typer.Option(help="Bytes per request.")] = 8_000_000,
    max_examples: Annotated[int, typer.Option(help="Examples per request.")] = 256,
    max_text: Annotated[int, typer.Option(help="Characters per text, nodes or edges per graph.")] = 20_000,
    max_pixels: Annotated[int, typer.Option(help="Pixels of all images of a request.")] = 50_000_000,
    max_seconds: Annotated[float, typer.Option(help="Seconds per request.")] = 30.0,
    max_rate: Annotated[float | None, typer.Option(help="Requests per second and client address.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Accepted host name besides localhost and addresses; * for all.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with a token that clients must send.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="TLS certificate in PEM format.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate.")] = None,
    json: options.Json = False,
) -> None:
    """Serve predictions over HTTP: POST /predict; GET /health, /model, /metrics; /docs describes every path.

    A body is `{"examples": [...]}` or `{"example": ...}`. An example is a text, two texts, words, a question with its
    text, a list of numbers, a base64 image file, a graph, or an object with the columns of a table. Concurrent
    requests are batched.

    Examples:

    - `holdfast serve models/reviews`

    - `holdfast serve models/reviews --coverage 0.9`

    - `holdfast serve models/reviews --watch --log monitoring/served`

    - `holdfast serve models/reviews --host 0.0.0.0 --token-file token.txt --tls-cert cert.pem --tls-key key.pem`

    - `holdfast serve models/reviews --host 0.0.0.0 --allow-host models.example.org --max-rate 20 --max-text 5000`

    SIGINT and SIGTERM stop the server after pending requests are answered.
    """
    from holdfast.serve.access import Access, read_token
    from holdfast.serve.requests import Limits
    from holdfast.serve.server import Certificate
    from holdfast.serve.server import serve as run
    from holdfast.serve.service import Service

    if (tls_cert is None) != (tls_key is None):
        raise BadInput("--tls-cert and --tls-key belong together: give both")
    tls = None if tls_cert is None or tls_key is None else Certificate(certificate=tls_cert, key=tls_key)
    token = None if token_file is None else read_token(token_file)
    access = Access(hosts=(host, *(allow_host or ())), token=token, rate=max_rate)
    limits = Limits(
        body=max_body, examples=max_examples, text=max_text, pixels=max_pixels, seconds=max_seconds, batch=max_batch,
        wait=max_wait / 1000,
    )  # fmt: skip
    service = Service(
        model, limits=limits, device=device, columns=options.pairs(column), coverage=coverage, sets=sets, watch=watch,
        log=log, window=window,
    )  # fmt: skip

    def ready(address: str) -> None:
        if json:
            print_json({"address": address, "model": service.model()["name"]})
        else:
            say(f"{service.model()['name']} is served at {address} (see {address}/docs)")

    run(service, host=host, port=port, ready=ready, access=access, tls=tls)
    if not json:
        say("stopped; all requests were answered")


def memory(
    model: options.Model,
    add: Annotated[str | None, options.option("Examples to store, with labels.")] = None,
    delete: Annotated[str | None, options.option("Examples to delete; they are recognised by their content.")] = None,
    device: options.Device = "auto",
    column: options.Column = None,
    json: options.Json = False,
) -> None:
    """Add examples to the memory of a model that was fitted with `--set predict=knn`, or delete some.

    Nothing is trained, and the next prediction uses the change, also in a running server.

    Examples:

    - `holdfast memory models/reviews --add corrected.csv`

    - `holdfast memory models/reviews --delete withdrawn.csv`
    """
    from holdfast.folders.memory import change_memory as run

    result = run(model, add=add, delete=delete, columns=options.pairs(column), device=device)
    if json:
        print_json(asdict(result))
        return
    say(f"{result.added} examples added, {result.deleted} deleted; {result.stored} are stored in {model}")
