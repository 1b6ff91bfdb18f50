"""Benchmark `serve`: throughput of a server with 32 clients against offline prediction, and of `--watch` against none.

A server with 32 waiting clients predicts at most 32 texts together, offline prediction several hundred. The case
"in batches" separates the two costs: the same batches of 32 in this process, without HTTP.

Frozen MiniLM on short texts, one text per request. The clients run in a separate process on this machine.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import torch

from holdfast.data.raw import Texts
from holdfast.estimator import DomainClassifier
from holdfast.serve.server import serving
from holdfast.serve.service import Service
from lab.benchmarks.harness import Result

CLIENTS, REQUESTS, ROUNDS = 32, 500, 12  # short rounds in turn, so that a busy machine affects all cases equally
EXAMPLES = 2000  # of the model, so that a monitor compares with some hundred held-out ones
WORDS = ("film", "book", "phone", "was", "very", "not", "quite", "good", "bad", "dull", "slow", "story", "screen")


def run(device: torch.device) -> list[Result]:
    """Measure the ratio of throughputs, the errors among all requests, and the offline throughput."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(6, 16))) for _ in range(REQUESTS)]
    ratios, alone, speeds, watched, work, errors = [], [], [], [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        model = _model(Path(folder) / "model", device)
        service, watching = (Service(model, device=device.type, watch=watch) for watch in (False, True))
        raw = Texts.of(texts)
        service.saved.probabilities(raw, device=device)  # warm
        with serving(service) as address, serving(watching) as watching_address:
            for each in (address, watching_address):
                _send(each, texts[: 4 * CLIENTS])
            for number in range(ROUNDS):
                start = time.perf_counter()
                service.saved.probabilities(raw, device=device)
                offline = time.perf_counter() - start
                batches = _time_batches(service, texts)
                order = (address, watching_address)[:: 1 if number % 2 == 0 else -1]  # each is the first in turn
                answers, used = {}, {}
                for each in order:
                    before = time.process_time()  # of all threads of both servers, without the clients
                    answers[each] = _send(each, texts)
                    used[each] = time.process_time() - before
                plain = answers[address]["seconds"]
                ratios.append(offline / plain)
                alone.append(batches / plain)
                watched.append(plain / answers[watching_address]["seconds"])
                work.append(used[watching_address] / used[address])
                speeds.append(REQUESTS / offline)
                errors += sum(len(each["errors"]) + each["unanswered"] for each in answers.values())
    assert watching.drift is not None
    return [
        Result(f"served/offline, {CLIENTS} clients", median(ratios), bar=0.8, at_least=True),
        Result(f"served/in batches of {CLIENTS}", median(alone), bar=0.85, at_least=True),
        Result(f"watched/unwatched, {CLIENTS} clients", median(watched), bar=0.95, at_least=True),
        Result("CPU time, watched/unwatched", median(work), bar=1.05),
        Result(f"errors in {2 * ROUNDS * REQUESTS} requests", float(errors), bar=0.0),
        Result("offline, examples per second", median(speeds), bar=None),
        Result("windows that were checked", float(watching.drift.windows), bar=None),
    ]


def _time_batches(service: Service, texts: list[str]) -> float:
    """Return the seconds of all texts in batches of one text per client, without HTTP."""
    requests = [service.parser.parse(json.dumps({"example": text}).encode()) for text in texts]
    start = time.perf_counter()
    for first in range(0, len(requests), CLIENTS):
        service.answer(requests[first : first + CLIENTS])
    return time.perf_counter() - start


def _model(folder: Path, device: torch.device) -> Path:
    """Write a model folder; its accuracy does not matter here."""
    pairs = EXAMPLES // 2
    texts, labels = [f"{word} thing" for word in ("good", "bad") * pairs], ["pos", "neg"] * pairs
    domains = ["a", "a", "b", "b"] * (EXAMPLES // 4)
    classifier = DomainClassifier(encoder="minilm", steps=2, batch=4, device=device.type, cache=False)
    return classifier.fit(texts, labels, domains=domains).save_pretrained(folder)


def _send(address: str, texts: list[str]) -> dict[str, Any]:
    url = urlsplit(address)
    bodies = [json.dumps({"example": text}) for text in texts]
    plan = json.dumps({"host": url.hostname, "port": url.port, "clients": CLIENTS, "bodies": bodies})
    command = [sys.executable, "-m", "lab.benchmarks.clients"]
    completed = subprocess.run(command, input=plan, capture_output=True, text=True, check=True)
    return json.loads(completed.stdout)
