"""Requests that arrive together are predicted together: a queue that one thread drains."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from holdfast.serve.limits import Busy, Limits
from holdfast.serve.reading import Asked

Work = Callable[[Sequence[Asked]], list[Any]]  # one answer an example, request after request


@dataclass(slots=True)
class _Job:
    asked: Asked
    answer: Future[list[Any]] = field(default_factory=Future)


class Batcher:
    """Calls `work` in a thread of its own with the requests of a batch; a faulty request spoils no other's answer.

    Where examples change each other's prediction (`alone`), requests are never joined.
    """

    def __init__(
        self, work: Work, limits: Limits, *, alone: bool = False, told: Callable[[int], None] | None = None
    ) -> None:
        self.work, self.limits, self.alone, self.told = work, limits, alone, told
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock, self._waiting, self._open = threading.Lock(), 0, True
        self._thread = threading.Thread(target=self._run, name="holdfast-batches", daemon=True)
        self._thread.start()

    def submit(self, asked: Asked) -> Future[list[Any]]:
        """The answers to come; Busy where too much waits already or the server stops."""
        with self._lock:
            if not self._open:
                raise Busy("the server is stopping: ask again when it is back")
            if self._waiting and self._waiting + len(asked) > self.limits.waiting:
                raise Busy("the server has too much to do: ask again later")
            self._waiting += len(asked)
            job = _Job(asked)
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
            lot = [each for each in lot if each.answer.set_running_or_notify_cancel()]
            if lot:
                self._answer(lot)
            job = self._jobs.get() if job is _NOTHING else job

    def _lot(self, first: _Job) -> tuple[list[_Job], _Job | None]:
        """Jobs that go together, and the one that came after them: nothing yet, or None where the queue ends."""
        lot, count = [first], len(first.asked)
        until = time.monotonic() + self.limits.wait
        while count < self.limits.batch and not self.alone:
            left = until - time.monotonic()
            try:
                job = self._jobs.get(timeout=left) if left > 0 else self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None or job.asked.shape != first.asked.shape or count + len(job.asked) > self.limits.batch:
                return lot, job
            lot.append(job)
            count += len(job.asked)
        return lot, _NOTHING

    def _answer(self, lot: list[_Job]) -> None:
        try:
            found = self.work([job.asked for job in lot])
        except Exception as error:  # whatever it is, it goes to those who asked
            if len(lot) == 1:
                lot[0].answer.set_exception(error)
                return
            for job in lot:
                self._answer([job])
            return
        if self.told is not None:
            self.told(len(found))
        start = 0
        for job in lot:
            job.answer.set_result(found[start : start + len(job.asked)])
            start += len(job.asked)


_NOTHING = _Job(Asked((), ()))  # nobody asked yet
