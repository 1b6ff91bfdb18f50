"""Examples a second of a server with 32 clients beside the same model's predictions offline, on the same machine.

MiniLM, frozen, on short texts; a request holds one text. The clients are a process of their own on this machine.
"""

from __future__ import annotations

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
from holdfast.serve.server import Service, serving

CLIENTS, REQUESTS, ROUNDS = 32, 2000, 3
WORDS = ("film", "book", "phone", "was", "very", "not", "quite", "good", "bad", "dull", "slow", "story", "screen")


def run(device: torch.device) -> list[Result]:
    """The ratio of examples a second, the errors among all requests, and how fast the machine is without a server."""
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(6, 16))) for _ in range(REQUESTS)]
    found, speeds, errors = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        service = Service(_model(Path(folder) / "model", device), device=device.type)
        raw = Texts.of(texts)
        service.saved.probabilities(raw, device=device)  # warm
        with serving(service) as address:
            _asked(address, texts[: 4 * CLIENTS])
            for _ in range(ROUNDS):
                start = time.perf_counter()
                service.saved.probabilities(raw, device=device)
                offline = time.perf_counter() - start
                told = _asked(address, texts)
                found.append(offline / told["seconds"])
                speeds.append(REQUESTS / offline)
                errors += len(told["errors"]) + told["unanswered"]
    return [
        Result(f"served/offline, {CLIENTS} clients", median(found), bar=0.8, at_least=True),
        Result(f"errors in {ROUNDS * REQUESTS} requests", float(errors), bar=0.0),
        Result("offline, examples a second", median(speeds), bar=None),
    ]


def _model(folder: Path, device: torch.device) -> Path:
    """A model folder as a user has it; how well it predicts does not matter here."""
    texts, labels = [f"{word} thing" for word in ("good", "bad") * 16], ["pos", "neg"] * 16
    made = DomainClassifier(encoder="minilm", steps=2, batch=4, device=device.type, cache=False)
    return made.fit(texts, labels, domains=["a", "a", "b", "b"] * 8).save_pretrained(folder)


def _asked(address: str, texts: list[str]) -> dict[str, Any]:
    where = urlsplit(address)
    plan = {
        "host": where.hostname,
        "port": where.port,
        "clients": CLIENTS,
        "bodies": [json.dumps({"example": text}) for text in texts],
    }
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.bench.clients"],
        input=json.dumps(plan), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)
