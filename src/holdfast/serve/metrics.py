"""Server metrics in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Gauges = Mapping[str, tuple[str, str, Mapping[str, float]]]  # name -> (help, type, labels -> value)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Cumulative counts of values per bound, their sum and their number."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        cumulative = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            cumulative += count
            yield f'{name}_bucket{{le="{bound}"}} {cumulative}'
        yield f"{name}_sum {self.total}"
        yield f"{name}_count {cumulative}"


class Metrics:
    """Thread-safe counts of requests by path and status, latencies, batches and examples."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._errors = self._examples = 0
        self._seconds, self._batches = Histogram(SECONDS), Histogram(SIZES)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request; only predictions count for the latency."""
        with self._lock:
            self._requests[(path, str(status))] += 1
            self._errors += status >= 400
            if path == "/predict":
                self._seconds.add(seconds)

    def batch(self, examples: int) -> None:
        """Count the examples of one batch."""
        with self._lock:
            self._batches.add(examples)
            self._examples += examples

    def text(self, gauges: Gauges | None = None) -> str:
        """Return all metrics, one line per value; `gauges` are those of a drift monitor."""
        with self._lock:
            by_status = {f'{{path="{path}",status="{status}"}}': n for (path, status), n in self._requests.items()}
            sections = [
                *_section("holdfast_requests_total", "Requests by path and status.", by_status),
                *_section("holdfast_errors_total", "Answers with status 400 or higher.", {"": self._errors}),
                *_section("holdfast_examples_total", "Examples predicted.", {"": self._examples}),
                *_section("holdfast_predict_seconds", "Seconds from request to answer.", self._seconds),
                *_section("holdfast_batch_examples", "Examples per batch.", self._batches),
            ]
        for name, (about, kind, values) in (gauges or {}).items():
            sections += _section(name, about, values, kind=kind)
        return "\n".join(sections) + "\n"


def _section(name: str, about: str, values: Mapping[str, float] | Histogram, *, kind: str = "counter") -> list[str]:
    histogram = isinstance(values, Histogram)
    lines = values.lines(name) if histogram else (f"{name}{labels} {n}" for labels, n in values.items())
    return [f"# HELP {name} {about}", f"# TYPE {name} {'histogram' if histogram else kind}", *lines]
