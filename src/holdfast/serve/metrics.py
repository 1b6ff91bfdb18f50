"""What a server counts, and how it tells it in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """How many values lie at or below each bound, their sum and their number."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        seen = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{le="{bound}"}} {seen}'
        yield f"{name}_sum {self.total}"
        yield f"{name}_count {seen}"


class Metrics:
    """Requests by path and status, their latency, batches and examples; several threads may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._errors = self._examples = 0
        self._seconds, self._batches = Histogram(SECONDS), Histogram(SIZES)

    def request(self, path: str, status: int, seconds: float) -> None:
        """A request was answered; the latency is that of predictions alone."""
        with self._lock:
            self._requests[(path, str(status))] += 1
            self._errors += status >= 400
            if path == "/predict":
                self._seconds.add(seconds)

    def batch(self, examples: int) -> None:
        """So many examples were predicted at once."""
        with self._lock:
            self._batches.add(examples)
            self._examples += examples

    def text(self) -> str:
        """All of it, one line a number."""
        with self._lock:
            by_status = {f'{{path="{path}",status="{status}"}}': n for (path, status), n in self._requests.items()}
            parts = [
                _counter("holdfast_requests_total", "Requests by path and status.", by_status),
                _counter("holdfast_errors_total", "Answers with a status of 400 or more.", {"": self._errors}),
                _counter("holdfast_examples_total", "Examples predicted.", {"": self._examples}),
                _histogram("holdfast_predict_seconds", "Seconds from a request to its answer.", self._seconds),
                _histogram("holdfast_batch_examples", "Examples predicted at once.", self._batches),
            ]
        return "\n".join(line for part in parts for line in part) + "\n"


def _counter(name: str, about: str, values: Mapping[str, int]) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} counter", *(f"{name}{at} {n}" for at, n in values.items())]


def _histogram(name: str, about: str, values: Histogram) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} histogram", *values.lines(name)]
