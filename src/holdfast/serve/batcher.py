"""Requests that arrive together are predicted together: a queue that one thread drains."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from holdfast.serve.reading import Asked, Busy, Limits

Work = Callable[[Sequence[Asked]], list[Any]]  # one answer an example, request after request


@dataclass(slots=True)
class _Job:
    asked: Asked
    answer: asyncio.Future[list[Any]]


class Batcher:
    """Calls `work` in a thread of its own with the requests of a batch; a faulty request spoils no other's answer.

    A batch waits for as many requests as were there around the last one, so that a single client never waits for
    others. Where examples change each other's prediction (`alone`), requests are never joined.
    """

    def __init__(
        self, work: Work, limits: Limits, *, alone: bool = False, told: Callable[[int], None] | None = None
    ) -> None:
        self.work, self.limits, self.alone, self.told = work, limits, alone, told
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock, self._waiting, self._open = threading.Lock(), 0, True
        self._usual = 1
        self._thread = threading.Thread(target=self._run, name="holdfast-batches", daemon=True)
        self._thread.start()

    def submit(self, asked: Asked) -> asyncio.Future[list[Any]]:
        """The answers to come, in the running loop; Busy where too much waits already or the server stops."""
        with self._lock:
            if not self._open:
                raise Busy("the server is stopping: ask again when it is back")
            if self._waiting and self._waiting + len(asked) > self.limits.waiting:
                raise Busy("the server has too much to do: ask again later")
            self._waiting += len(asked)
            job = _Job(asked, asyncio.get_running_loop().create_future())
            self._jobs.put(job)
        return job.answer

    def close(self) -> None:
        """Take nothing more, finish what waits, and end the thread."""
        with self._lock:
            if self._open:
                self._open = False
                self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        job = self._jobs.get()
        while job is not None:
            lot, job = self._lot(job)
            with self._lock:
                self._waiting -= sum(len(each.asked) for each in lot)
            here = [each for each in lot if not each.answer.cancelled()]
            if here:
                found = self._found(here)
                self._usual = len(here) + self._jobs.qsize()  # before those who get an answer ask again
                with suppress(RuntimeError):  # the loop was ended by force: nobody waits any more
                    here[0].answer.get_loop().call_soon_threadsafe(_hand_out, here, found)
            job = self._jobs.get() if job is _NOTHING else job

    def _lot(self, first: _Job) -> tuple[list[_Job], _Job | None]:
        """Jobs that go together, and the one that came after them: nothing yet, or None where the queue ends."""
        lot, count = [first], len(first.asked)
        until = time.monotonic() + self.limits.wait
        while count < self.limits.batch and not self.alone:
            left = until - time.monotonic() if len(lot) < self._usual else 0
            try:
                job = self._jobs.get(timeout=left) if left > 0 else self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None or job.asked.shape != first.asked.shape or count + len(job.asked) > self.limits.batch:
                return lot, job
            lot.append(job)
            count += len(job.asked)
        return lot, _NOTHING

    def _found(self, lot: list[_Job]) -> list[list[Any] | Exception]:
        """The answers of each request, or what went wrong with it."""
        try:
            found = self.work([job.asked for job in lot])
        except Exception as error:  # whatever it is, it goes to those who asked
            half = len(lot) // 2
            return [*self._found(lot[:half]), *self._found(lot[half:])] if half else [error]
        if self.told is not None:
            self.told(len(found))
        rest = iter(found)
        return [list(islice(rest, len(job.asked))) for job in lot]


def _hand_out(lot: Sequence[_Job], found: Sequence[list[Any] | Exception]) -> None:
    """In the loop, all at once: to wake it for every request would cost more than the answers."""
    for job, each in zip(lot, found, strict=True):
        if job.answer.done():
            continue  # whoever asked has gone
        if isinstance(each, Exception):
            job.answer.set_exception(each)
        else:
            job.answer.set_result(each)


_NOTHING: Any = object()  # nobody asked yet
