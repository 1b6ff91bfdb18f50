"""Generated inputs: every reader and endpoint returns a result or raises BadInput, never another exception."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.cli.options import read_config
from holdfast.core.errors import BadInput, one_line
from holdfast.data.decode import decode_image
from holdfast.data.load import load_data
from holdfast.data.synthetic import world
from holdfast.folders.format import load_model
from holdfast.record import read as read_record
from holdfast.serve.app import make_app
from holdfast.serve.requests import Limits
from holdfast.serve.service import Service
from holdfast.stats.table import tabulate
from holdfast.train.settings import make_spec
from tests.generators import samples
from tests.generators.bodies import small_model
from tests.generators.mutate import mutate, mutate_json
from tests.generators.user_tables import SUFFIXES, faulty_table, good_rows

BLOCK = 15_000  # inputs per process
DRAWN = 0.3  # share of the inputs that are tables with faults, where a source has them
CONCURRENT = 32  # requests at the same time
SLOW = 20  # seconds after which an input counts as a hang
MEMORY = 12 << 30  # bytes of address space per process
LIMITS = Limits(examples=4, text=300, body=20_000, pixels=1_000_000)
KINDS = ("text", "vector", "image", "words", "graph")
# relative number of inputs; cheap readers get more
SHARES = {
    "csv": 30, "tsv": 15, "jsonl": 40, "parquet": 30, "npz": 50, "zip graphs": 50, "TU text": 60, "tags": 60,
    "questions": 60, "corpus": 25, "SMILES": 15, "images": 150, "records": 120, "models": 5, "settings": 5,
    "/predict text": 60, "/predict vector": 90, "/predict image": 40, "/predict words": 20, "/predict graph": 80,
}  # fmt: skip
SETTINGS = {
    "lr": 0.01, "steps": 5, "method": "erm", "encoder": "mlp", "encoder.hidden": [4], "tune": "full", "neck": "memory",
    "plan": "stream", "select": "last", "clip": 1.0, "every": 2, "seed": 0,
}  # fmt: skip


@dataclass
class Source:
    """Where inputs come from, and what reads them."""

    samples: list[bytes]
    check: Callable[[list[bytes]], list[str]]
    draw: Callable[[random.Random], bytes] | None = None  # returns a table with faults
    documents: list[Any] = field(default_factory=list)  # samples that are JSON, of which values are changed too


@dataclass
class Result:
    """Outcomes of one kind of inputs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    slowest: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)


def _one_by_one(check: Callable[[bytes], object]) -> Callable[[list[bytes]], list[str]]:
    return lambda inputs: [_outcome(check, content) for content in inputs]


def _outcome(check: Callable[[bytes], object], content: bytes) -> str:
    """Return `accepted` or `rejected`; other exceptions propagate."""
    try:
        check(content)
    except BadInput as error:
        sentence = one_line(str(error))
        assert 10 < len(sentence) < 1000, sentence
        return "rejected"
    return "accepted"


def _read(path: Path, content: bytes, *, form: str = "table", data: Path | None = None) -> None:
    """Read the content as a data set, every second one without labels, and take its rows."""
    path.write_bytes(content)
    need = ("label", "domain") if len(content) % 2 else ()
    dataset = load_data(data or path, known={}, need=need, form=form)
    first = np.arange(min(len(dataset), 50))
    dataset.raw.take(first, size=8)
    dataset.raw.digest(first)


def _decode(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert decode_image(path, 8).shape == (3, 8, 8)


def _record(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    tabulate([read_record(path)], "accuracy")


def _settings(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    make_spec(world("vector", "rotation", domains=3, size=20, classes=2, seed=0), settings=read_config(path))


def _model(folder: Path, name: str, original: bytes, content: bytes) -> None:
    """Load a model folder with one changed file."""
    (folder / name).write_bytes(content)
    try:
        load_model(folder)
    finally:
        (folder / name).write_bytes(original)


class _Endpoint:
    """The application of a small model, called in this process."""

    def __init__(self, model: Path) -> None:
        self.model, self.service = model, Service(model, limits=LIMITS, device="cpu")
        self.app: Any = None

    def __call__(self, inputs: list[bytes]) -> list[str]:
        if self.app is None:
            self.app = make_app(self.service)  # starts a thread, which a forked process would not have
            self.loop, self.lifespan = asyncio.new_event_loop(), contextlib.AsyncExitStack()
            self.loop.run_until_complete(self.lifespan.enter_async_context(self.app.router.lifespan_context(self.app)))
        outcomes = []
        for start in range(0, len(inputs), CONCURRENT):
            outcomes += self.loop.run_until_complete(self._answers(inputs[start : start + CONCURRENT]))
        return outcomes

    def close(self) -> None:
        """End the threads and the event loop."""
        if self.app is not None:
            self.loop.run_until_complete(self.lifespan.aclose())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    async def _answers(self, inputs: list[bytes]) -> list[str]:
        return await asyncio.gather(*map(self._answer, inputs))

    async def _answer(self, body: bytes) -> str:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/predict", "headers": headers, "query_string": b""}
        try:
            await self.app(
                {**scope, "client": ("127.0.0.1", 1), "http_version": "1.1", "scheme": "http"}, receive, send
            )
            status, text = sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
            document = json.loads(text, parse_constant=_no_constant)
            for secret in (str(self.model.parent), "Traceback", "site-packages", "/src/holdfast", 'File "'):
                assert secret not in text.decode(), text
            if status == 200:
                assert document["predictions"], text
            else:
                assert status in (413, 422), (status, text)
                assert list(document) == ["error"], text
                assert len(document["error"].splitlines()) == 1, text
        except Exception as error:
            raise _InputError(body) from error
        return "accepted" if status == 200 else "rejected"


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


class _InputError(Exception):
    """Names the body that an endpoint did not handle."""


def _table(rng: random.Random, suffixes: Sequence[str] = SUFFIXES) -> bytes:
    return faulty_table(good_rows("a", "b"), rng, suffixes)[1]


def sources(folder: Path, kinds: Collection[str]) -> dict[str, Source]:
    """Return the sources of these kinds; files are written below a folder."""
    files = samples.table_samples()
    every: dict[str, Source] = {}

    def reader(kind: str, name: str, contents: list[bytes], draw: Any = None, **options: Any) -> None:
        every[kind] = Source(contents, _one_by_one(partial(_read, folder / name, **options)), draw)

    for suffix in SUFFIXES:
        reader(suffix[1:], f"data{suffix}", files[suffix], partial(_table, suffixes=(suffix,)))
    reader("npz", "data.npz", files[".npz"], _table)
    reader("zip graphs", "data.zip", files[".zip"], _table)
    reader("SMILES", "molecules.csv", samples.smiles_samples())
    reader("corpus", "corpus.txt", [b"one line\nanother line\n", *files[".txt"]], _table, form="corpus")
    for kind, contents, form in (
        ("tags", samples.tag_samples(folder), "tags"), ("questions", samples.question_samples(), "questions"),
    ):  # fmt: skip
        checks = [(partial(_read, folder / f"{form}{end}", form=form), content) for end, content in contents.items()]
        every[kind] = Source([c for _, content in checks for c in content], _alternate([c for c, _ in checks]))
    layout = samples.layout_samples(folder / "TU")
    every["TU text"] = Source([c for content in layout.values() for c in content], _layout(folder / "TU", layout))
    images = [samples.image_bytes(form) for form in samples.IMAGE_FORMATS]
    every["images"] = Source(images, _one_by_one(partial(_decode, folder / "image.png")))
    model = small_model("vector", folder)
    record = (model / "record.json").read_bytes()
    check = _one_by_one(partial(_record, folder / "record.json"))
    every["records"] = Source([record], check, documents=[_without_checksum(record)])
    copies = {name: (model / name).read_bytes() for name in ("config.json", "heldout.json", "gauge.safetensors")}
    copy = Path(shutil.copytree(model, folder / "copy"))
    check = _alternate([partial(_model, copy, n, c) for n, c in copies.items()])
    every["models"] = Source([*copies.values()], check, documents=[json.loads(copies["config.json"])])
    check = _one_by_one(partial(_settings, folder / "settings.json"))
    every["settings"] = Source([json.dumps(SETTINGS).encode()], check, documents=[SETTINGS])
    for kind in KINDS:
        if f"/predict {kind}" in kinds:
            contents, documents = samples.body_samples(kind)
            endpoint = _Endpoint(small_model(kind, folder))
            every[f"/predict {kind}"] = Source(contents, endpoint, documents=documents)
    return {kind: every[kind] for kind in kinds}


def _without_checksum(record: bytes) -> dict[str, Any]:
    """Return the fields of a record that are read without a comparison of the checksum."""
    return {key: value for key, value in json.loads(record).items() if key != "checksum"}


def _alternate(checks: list[Callable[[bytes], object]]) -> Callable[[list[bytes]], list[str]]:
    return lambda inputs: [_outcome(checks[len(c) % len(checks)], c) for c in inputs]


def _layout(folder: Path, layout: dict[str, list[bytes]]) -> Callable[[list[bytes]], list[str]]:
    """Check TU folders with one changed file, chosen by the length of its content."""
    names = sorted(layout)

    def check(content: bytes) -> None:
        name = names[len(content) % len(names)]
        try:
            _read(folder / name, content, data=folder)
        finally:
            (folder / name).write_bytes(layout[name][0])

    return _one_by_one(check)


def generate(source: Source, count: int, seed: int) -> list[bytes]:
    """Return inputs: faulty tables where the source draws them, and mutated samples."""
    rng = random.Random(seed)
    return [_generated(source, rng) for _ in range(count)]


def _generated(source: Source, rng: random.Random) -> bytes:
    if source.draw is not None and rng.random() < DRAWN:
        return source.draw(rng)
    if source.documents and rng.random() < 0.6:
        return mutate_json(source.documents, rng)
    return mutate(source.samples, rng)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard what libraries print to the standard error, such as RDKit's remarks on molecules."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def _timeout(number: int, frame: object) -> None:
    raise TimeoutError(f"no answer within {SLOW} seconds")


Generate = Callable[[Source, int, int], list[bytes]]


def _run_block(kind: str, source: Source, inputs: list[bytes], seed: int, progress: Any, connection: Any) -> None:
    """Run inputs in a forked process and send outcomes, the longest time and unexpected exceptions."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _timeout)
    warnings.simplefilter("ignore")
    outcomes: Counter[str] = Counter()
    failures, slowest = [], 0.0
    size = CONCURRENT if isinstance(source.check, _Endpoint) else 1
    with _silent():
        for start in range(0, len(inputs), size):
            progress.value = start
            group, began = inputs[start : start + size], time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, SLOW)
            try:
                outcomes.update(source.check(group))
            except Exception as error:
                outcomes["failed"] += len(group)
                body = error.args[0] if isinstance(error, _InputError) else group[0]
                cause = error.__cause__ if isinstance(error, _InputError) else error
                lines = traceback.format_exception(cause)[-4:]
                failures.append({"kind": kind, "seed": seed, "input": repr(body[:400]), "error": "".join(lines)})
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            slowest = max(slowest, (time.perf_counter() - began) / len(group))
    connection.send((outcomes, slowest, failures, time.process_time()))
    connection.close()
    os._exit(0)  # threads of the endpoint do not end


def _block(kind: str, source: Source, count: int, seed: int, result: Result, generate: Generate = generate) -> None:
    """Run one block in a forked process; a crash of the process is a failure of the input it was reading."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    progress = context.Value("i", 0)
    process = context.Process(
        target=_run_block, args=(kind, source, generate(source, count, seed), seed, progress, sender)
    )
    began = time.perf_counter()
    process.start()
    sender.close()
    try:
        outcomes, slowest, failures, cpu = receiver.recv()
        result.cpu_seconds += cpu
        result.outcomes.update(outcomes)
        result.slowest = max(result.slowest, slowest)
        result.failures += failures
    except EOFError:
        process.join()
        at = progress.value
        content = generate(source, count, seed)[at]
        error = f"the process ended with code {process.exitcode}"
        result.outcomes["failed"] += 1
        result.failures.append({"kind": kind, "seed": seed, "input": repr(content[:400]), "error": error})
    process.join()
    result.seconds += time.perf_counter() - began


def run(
    count: int, seed: int, say: Callable[[str], None], *, seconds: float = float("inf"), only: Sequence[str] = ()
) -> dict[str, Any]:
    """Run `count` inputs, distributed over all kinds; stop earlier after `seconds`."""
    torch.set_num_threads(1)
    shares = {kind: share for kind, share in SHARES.items() if not only or kind in only}
    started, every = time.monotonic(), sum(shares.values())
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-", dir=base) as name:
        available = sources(Path(name), shares)
        remaining = {kind: max(1, count * share // every) for kind, share in shares.items()}
        remaining[next(iter(remaining))] += max(0, count - sum(remaining.values()))
        results, turn = {kind: Result() for kind in shares}, 0
        while any(remaining.values()) and time.monotonic() - started < seconds:
            for kind, left in remaining.items():
                size = min(left, max(1, BLOCK * SHARES[kind] // max(SHARES.values())))
                if size and time.monotonic() - started < seconds:
                    _block(kind, available[kind], size, hash((seed, turn)) & 0x7FFFFFFF, results[kind])
                    remaining[kind] -= size
            turn += 1
            done, failed = (
                sum(r.outcomes.total() for r in results.values()),
                sum(len(r.failures) for r in results.values()),
            )
            say(f"inputs: {done:,} of {count:,}, {failed} failures, {time.monotonic() - started:.0f} s")
    kinds = {
        kind: {**result.outcomes, "cpu_seconds": round(result.cpu_seconds, 1), "slowest": round(result.slowest, 3)}
        for kind, result in results.items()
    }
    return {
        "requested": count,
        "inputs": sum(result.outcomes.total() for result in results.values()),
        "seconds": round(time.monotonic() - started, 1),
        "kinds": kinds,
        "failures": [failure for result in results.values() for failure in result.failures],
    }
