"""Server metrics in the text format of Prometheus."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import Metric

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Gauges = Mapping[str, tuple[str, str, Mapping[str, float]]]  # name -> (help, type, class or "" -> value)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()


class Metrics:
    """Counts of requests by path and status, latencies, batches and examples; `gauges` are those of a drift monitor."""

    def __init__(self, gauges: Callable[[], Gauges] = dict) -> None:
        self.gauges, self.registry = gauges, CollectorRegistry()
        here = self.registry
        self.requests = Counter("holdfast_requests", "Requests by path and status.", ("path", "status"), registry=here)
        self.errors = Counter("holdfast_errors", "Answers with status 400 or higher.", registry=here)
        self.examples = Counter("holdfast_examples", "Examples predicted.", registry=here)
        about = "Seconds from request to answer."
        self.seconds = Histogram("holdfast_predict_seconds", about, buckets=SECONDS, registry=here)
        self.batches = Histogram("holdfast_batch_examples", "Examples per batch.", buckets=SIZES, registry=here)
        self.registry.register(self)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request; only predictions count for the latency."""
        self.requests.labels(path, status).inc()
        self.errors.inc(status >= 400)
        if path == "/predict":
            self.seconds.observe(seconds)

    def batch(self, examples: int) -> None:
        """Count the examples of one batch."""
        self.batches.observe(examples)
        self.examples.inc(examples)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, as the registry requests them."""
        for name, (about, kind, values) in self.gauges().items():
            metric = Metric(name.removesuffix("_total"), about, kind)
            for label, value in values.items():
                metric.add_sample(name, {"label": label} if label else {}, value)
            yield metric

    def text(self) -> str:
        """Return all metrics, one line per value."""
        return generate_latest(self.registry).decode()
