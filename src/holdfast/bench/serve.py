"""Benchmark `serve`: throughput of a server with 32 clients against offline prediction on the same machine.

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

from holdfast.bench.harness import Result
from holdfast.data.raw import Texts
from holdfast.estimator import DomainClassifier
from holdfast.serve.server import serving
from holdfast.serve.service import Service

CLIENTS, REQUESTS, ROUNDS = 32, 2000, 3
WORDS = ("film", "book", "phone", "was", "very", "not", "quite", "good", "bad", "dull", "slow", "story", "screen")


def run(device: torch.device) -> list[Result]:
    """Measure the ratio of throughputs, the errors among all requests, and the offline throughput."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(6, 16))) for _ in range(REQUESTS)]
    ratios, speeds, errors = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        service = Service(_model(Path(folder) / "model", device), device=device.type)
        raw = Texts.of(texts)
        service.saved.probabilities(raw, device=device)  # warm
        with serving(service) as address:
            _send(address, texts[: 4 * CLIENTS])
            for _ in range(ROUNDS):
                start = time.perf_counter()
                service.saved.probabilities(raw, device=device)
                offline = time.perf_counter() - start
                answers = _send(address, texts)
                ratios.append(offline / answers["seconds"])
                speeds.append(REQUESTS / offline)
                errors += len(answers["errors"]) + answers["unanswered"]
    return [
        Result(f"served/offline, {CLIENTS} clients", median(ratios), bar=0.8, at_least=True),
        Result(f"errors in {ROUNDS * REQUESTS} requests", float(errors), bar=0.0),
        Result("offline, examples per second", median(speeds), bar=None),
    ]


def _model(folder: Path, device: torch.device) -> Path:
    """Write a model folder; its accuracy does not matter here."""
    texts, labels = [f"{word} thing" for word in ("good", "bad") * 16], ["pos", "neg"] * 16
    classifier = DomainClassifier(encoder="minilm", steps=2, batch=4, device=device.type, cache=False)
    return classifier.fit(texts, labels, domains=["a", "a", "b", "b"] * 8).save_pretrained(folder)


def _send(address: str, texts: list[str]) -> dict[str, Any]:
    url = urlsplit(address)
    bodies = [json.dumps({"example": text}) for text in texts]
    plan = json.dumps({"host": url.hostname, "port": url.port, "clients": CLIENTS, "bodies": bodies})
    command = [sys.executable, "-m", "holdfast.bench.clients"]
    completed = subprocess.run(command, input=plan, capture_output=True, text=True, check=True)
    return json.loads(completed.stdout)
