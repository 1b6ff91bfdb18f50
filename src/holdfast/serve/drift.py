"""Drift of the examples that a server predicts: a check per window of examples, gauges, and an opt-in log.

The thread that predicts only hands over its results; statistics, tests and the log are computed in another thread.
"""

import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from holdfast.core.errors import BadInput, check_at_least, warn
from holdfast.data.raw import Raw
from holdfast.folders.format import SavedModel
from holdfast.monitor.check import BatchCheck
from holdfast.monitor.drift import MIN_ROWS
from holdfast.monitor.log import ServedLog
from holdfast.monitor.observe import Observed, observed_of
from holdfast.monitor.sequence import KEPT, Past
from holdfast.monitor.watch import model_checker, model_version
from holdfast.serve.metrics import Gauges
from holdfast.uncertainty.arrays import Predicted

WINDOW = 500  # smallest number of examples per check
SHARE = 0.03  # of the time of one core that checks may take: a busy server has larger windows instead of more of them
MAX_WINDOW = 10_000  # examples of a window that are kept; of more, every second, fourth, ... is kept
MAX_WAITING = 20_000  # examples that wait for their statistics; further ones are not watched


class DriftMonitor:
    """Watches the predictions of one model; `log` is a folder for `holdfast watch`, or None."""

    def __init__(self, saved: SavedModel, folder: Path, *, log: Path | None = None, window: int = WINDOW) -> None:
        if not saved.predicts:
            raise BadInput(f"a served model of the task {saved.task} is not watched: remove --watch and --log")
        if saved.calibration is None:
            raise BadInput("this model has no calibration, which --watch and --log need: fit the model again")
        check_at_least(MIN_ROWS, window=window)
        self.saved, self.window, self.checker = saved, window, model_checker(saved, brief=True)
        self.log = None if log is None else ServedLog(log, model=model_version(folder))
        self._queue: queue.SimpleQueue[tuple[Raw, Predicted] | None] = queue.SimpleQueue()
        self._lock, self._waiting, self.unwatched, self.examples, self.windows = threading.Lock(), 0, 0, 0, 0
        self._pending: list[Observed] = []
        self._stride = 1  # of the examples of the present window that are kept
        self._next = time.monotonic()  # earliest time of the next check
        self._past: list[Past] = []
        self.latest: BatchCheck | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-drift", daemon=True)
        self._thread.start()

    def observe(self, raw: Raw, predictions: Predicted) -> None:
        """Hand over the predictions of some examples; this returns immediately."""
        with self._lock:
            if self._waiting + len(raw) > MAX_WAITING:
                self.unwatched += len(raw)
                return
            self._waiting += len(raw)
        self._queue.put((raw, predictions))

    def close(self) -> None:
        """Process what was handed over and end the thread."""
        self._queue.put(None)
        self._thread.join()
        if self.log is not None:
            self.log.close()

    def _run(self) -> None:
        while (item := self._take()) is not None:
            try:
                if item is not _NOTHING:
                    self._add(*item)
                if self._full and time.monotonic() >= self._next:
                    self._check()
            except Exception as error:  # a full disk must not stop the predictions
                warn(f"examples were not watched: {error}")
                with self._lock:
                    self.unwatched += len(item[0])
            with self._lock:
                self._waiting -= len(item[0])

    @property
    def _full(self) -> bool:
        return sum(map(len, self._pending)) >= self.window

    def _take(self) -> tuple[Any, Any] | None:
        """Wait for predictions, or until a full window may be checked."""
        try:
            return self._queue.get(timeout=max(0.0, self._next - time.monotonic()) if self._full else None)
        except queue.Empty:
            return _NOTHING

    def _add(self, raw: Raw, predictions: Predicted) -> None:
        observed = observed_of(self.saved, raw, predictions, self.checker.reference)
        if self.log is not None:
            self.log.add(observed)
        chosen = np.arange(-self.examples % self._stride, len(observed), self._stride)
        self.examples += len(observed)
        self._pending.append(observed if self._stride == 1 else observed.take(chosen))
        if sum(map(len, self._pending)) > max(MAX_WINDOW, self.window):
            joined = Observed.cat(self._pending)
            self._pending, self._stride = [joined.take(np.arange(0, len(joined), 2))], 2 * self._stride

    def _check(self) -> None:
        """Check the present window, and delay the next one in proportion to the time this takes."""
        joined, self._pending, self._stride = Observed.cat(self._pending), [], 1
        start = time.thread_time()
        with threadpool_limits(1, user_api="blas"):  # threads of small products would mostly wait for one another
            check = self.checker.check(f"window {self.windows + 1}", None, joined, past=self._past)
        self._next = time.monotonic() + (time.thread_time() - start) / SHARE
        latest = {"summary": check.summary, "drifted": [finding.name for finding in check.drifted]}
        self._past = [*self._past, latest][-KEPT:]
        with self._lock:
            self.latest, self.windows = check, self.windows + 1

    def _results(self) -> tuple[BatchCheck | None, int, int]:
        """Return the latest check, and the numbers of windows and of examples that were not watched."""
        with self._lock:
            return self.latest, self.windows, self.unwatched

    def state(self) -> dict[str, Any]:
        """Return the state for /health."""
        latest, windows, unwatched = self._results()
        drifted = [] if latest is None else [finding.name for finding in latest.drifted]
        accuracy = None if latest is None or latest.accuracy is None else latest.accuracy.json()
        return {
            "windows": windows, "window": self.window, "drift": bool(drifted), "drifted": drifted[:10],
            "accuracy": accuracy, "unwatched": unwatched,
        }  # fmt: skip

    def gauges(self) -> Gauges:
        """Return the gauges of the latest window for /metrics."""
        latest, windows, unwatched = self._results()
        gauges: dict[str, tuple[str, str, Mapping[str, float]]] = {
            "holdfast_watch_windows_total": ("Windows that were checked for drift.", "counter", {"": windows}),
            "holdfast_watch_unwatched_total": ("Examples that were not watched.", "counter", {"": unwatched}),
        }
        if latest is None:
            return gauges
        own, mean = latest.accuracy, None
        if self.saved.predicts == "numbers":
            mean = next((f.value for f in latest.findings if f.name == "predictions"), None)
        for name, about, value in (
            ("drift", "Whether the latest window drifted.", float(bool(latest.drifted))),
            ("p_value", "Smallest corrected p value of the window.", min(f.corrected for f in latest.findings)),
            ("discrepancy", "Squared maximum mean discrepancy of the features.", latest.discrepancy),
            ("foreign_share", "Share of examples far from the training data.", latest.foreign),
            ("accuracy", "Estimated accuracy.", own and own.estimate),
            ("accuracy_low", "Lower end of the interval of the accuracy.", own and own.low),
            ("accuracy_high", "Upper end of the interval of the accuracy.", own and own.high),
            ("prediction_mean", "Mean predicted number.", mean),
        ):
            if value is not None:
                gauges[f"holdfast_watch_{name}"] = about, "gauge", {"": value}
        if latest.predicted:
            gauges["holdfast_watch_predicted_share"] = "Share of predictions per label.", "gauge", latest.predicted
        return gauges


_NOTHING: Any = ((), None)  # no predictions arrived
