"""Batching of concurrent requests: one thread predicts what a queue collects."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from holdfast.serve.requests import Busy, Limits, ParsedRequest

Work = Callable[[Sequence[ParsedRequest]], list[Any]]  # returns one answer per example, in order


@dataclass(slots=True)
class _Job:
    request: ParsedRequest
    answer: asyncio.Future[list[Any]]


class Batcher:
    """Call `work` in a separate thread with the requests of a batch; an error affects only its own request.

    A batch waits for the number of requests that were pending around the previous one, so that a single client never
    waits. With `alone`, requests are never joined, because their predictions would influence each other.
    """

    def __init__(
        self, work: Work, limits: Limits, *, alone: bool = False, on_batch: Callable[[int], None] | None = None
    ) -> None:
        self.work, self.limits, self.alone, self.on_batch = work, limits, alone, on_batch
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock, self._waiting, self._open = threading.Lock(), 0, True
        self._expected = 1
        self._thread = threading.Thread(target=self._run, name="holdfast-batches", daemon=True)
        self._thread.start()

    def submit(self, request: ParsedRequest) -> asyncio.Future[list[Any]]:
        """Return a future of the answers; raise Busy if the queue is full or the server stops."""
        with self._lock:
            if not self._open:
                raise Busy("the server is stopping: retry later")
            if self._waiting and self._waiting + len(request) > self.limits.waiting:
                raise Busy("the server is overloaded: retry later")
            self._waiting += len(request)
            job = _Job(request, asyncio.get_running_loop().create_future())
            self._jobs.put(job)
        return job.answer

    def close(self) -> None:
        """Reject new requests, finish pending ones, and end the thread."""
        with self._lock:
            if self._open:
                self._open = False
                self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        job = self._jobs.get()
        while job is not None:
            batch, job = self._collect(job)
            with self._lock:
                self._waiting -= sum(len(member.request) for member in batch)
            active = [member for member in batch if not member.answer.cancelled()]
            if active:
                answers = self._answers(active)
                self._expected = len(active) + self._jobs.qsize()  # before answered clients send their next request
                with suppress(RuntimeError):  # the event loop was killed
                    active[0].answer.get_loop().call_soon_threadsafe(_resolve, active, answers)
            job = self._jobs.get() if job is _NONE_YET else job

    def _collect(self, first: _Job) -> tuple[list[_Job], _Job | None]:
        """Return the jobs of a batch and the job after them: _NONE_YET, or None at the end of the queue."""
        batch, count = [first], len(first.request)
        until = time.monotonic() + self.limits.wait
        while count < self.limits.batch and not self.alone:
            left = until - time.monotonic() if len(batch) < self._expected else 0
            try:
                job = self._jobs.get(timeout=left) if left > 0 else self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None or job.request.shape != first.request.shape or count + len(job.request) > self.limits.batch:
                return batch, job
            batch.append(job)
            count += len(job.request)
        return batch, _NONE_YET

    def _answers(self, batch: list[_Job]) -> list[list[Any] | Exception]:
        """Return the answers or the exception of each request."""
        try:
            answers = self.work([job.request for job in batch])
        except Exception as error:  # bisect, so that only the faulty requests fail
            half = len(batch) // 2
            return [*self._answers(batch[:half]), *self._answers(batch[half:])] if half else [error]
        if self.on_batch is not None:
            self.on_batch(len(answers))
        remaining = iter(answers)
        return [list(islice(remaining, len(job.request))) for job in batch]


def _resolve(batch: Sequence[_Job], answers: Sequence[list[Any] | Exception]) -> None:
    """Set all futures in one callback, which is cheaper than waking the event loop per request."""
    for job, answer in zip(batch, answers, strict=True):
        if job.answer.done():
            continue  # the client disconnected
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
        else:
            job.answer.set_result(answer)


_NONE_YET: Any = object()  # the queue is empty
