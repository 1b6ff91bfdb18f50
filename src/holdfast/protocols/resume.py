"""Stopping and going on: a saver that writes the state of a run at an interval and at a signal."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.core import parallel
from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.errors import BadInput, warn


class _Asked(threading.Event):
    by: int = signal.SIGINT


_asked_to_stop = _Asked()


class Interrupted(Exception):
    """The run was asked to stop, and its state is saved; the first argument is the signal."""


@contextmanager
def stop_at_signal() -> Iterator[None]:
    """SIGINT and SIGTERM inside end the current step, save and raise Interrupted; a second SIGINT is at once.

    A launcher of several processes may ask twice, and ends itself those that take too long: they are asked once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if _asked_to_stop.is_set():
            if parallel.active():
                return
            raise KeyboardInterrupt
        _asked_to_stop.by = number
        _asked_to_stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        leaving = parallel.active() and _asked_to_stop.is_set()
        _asked_to_stop.clear()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if leaving else handler)


def request_stop() -> None:
    """What a signal does, for a process that is told in another way; it is not taken back."""
    _asked_to_stop.set()


def stop_if_requested() -> None:
    """Raise Interrupted if a signal came while nothing was running that could be saved; of several processes none

    stops by itself.
    """
    if _asked_to_stop.is_set() and not parallel.active():
        raise Interrupted(_asked_to_stop.by)


def stop_all_if_requested() -> None:
    """The same where all processes of a run come by: all stop where one was asked."""
    by = parallel.all_max(_asked_by())[0]
    if by:
        raise Interrupted(by)


def _asked_by() -> int:
    """The signal that asked to stop, or 0."""
    return int(_asked_to_stop.by) if _asked_to_stop.is_set() else 0


class Saver:
    """The checkpoint of one run: due every `seconds` ($HOLDFAST_SAVE_SECONDS, or 30), gone when the run is finished.

    The checkpoint before it stays beside it, for the case that the newest is damaged. A clock that is set anew changes
    nothing: seconds are those of a clock that only runs.
    """

    def __init__(self, path: Path | None, *, seconds: float | None = None) -> None:
        self.path = path
        self.previous = None if path is None else path.with_name(f"{path.name}.previous")
        self.seconds = float(os.environ.get("HOLDFAST_SAVE_SECONDS", "30")) if seconds is None else seconds
        self.started = self.written = time.monotonic()
        self.done: list[dict[str, Any]] = []  # results of the stages before the one that is saved
        self.spent = 0.0  # seconds of earlier attempts
        self.steps, self.training = 0, 0.0  # steps taken and the seconds they took, over all attempts

    def due(self) -> bool:
        by, late = parallel.all_max(_asked_by(), int(self._waited(self.seconds)))
        if by and not _asked_to_stop.is_set():
            _asked_to_stop.by = by
            _asked_to_stop.set()
        return bool(by or late)

    def worth(self) -> bool:
        """Whether so much was done since the last time that it should not be lost in the scoring that follows."""
        return bool(parallel.all_max(int(self._waited(min(self.seconds, 5.0))))[0])

    def _waited(self, seconds: float) -> bool:
        return self.path is not None and parallel.is_first() and time.monotonic() - self.written >= seconds

    def save(self, state: dict[str, Any]) -> None:
        """Write the state; where the run was asked to stop, stop."""
        if self.path is not None and self.previous is not None and parallel.is_first():
            with suppress(OSError):  # the first has none before it
                os.replace(self.path, self.previous)
            run = {"done": self.done, "seconds": self.elapsed(), "steps": self.steps, "training": self.training}
            save_tree(self.path, {"run": {**run, "processes": parallel.world_size()}, "fit": state})
            self.written = time.monotonic()
        if _asked_to_stop.is_set():
            parallel.all_max(0)  # none leaves before it is written
            raise Interrupted(_asked_to_stop.by)

    def load(self) -> dict[str, Any] | None:
        """What was saved last, or before that where the last is damaged; None for a fresh start."""
        saved = parallel.from_first(self._read)
        if saved is not None:
            run = saved["run"]
            self.spent, self.steps, self.training = (run[name] for name in ("seconds", "steps", "training"))
            begun, now = run.get("processes", 1), parallel.world_size()
            if begun != now:
                raise BadInput(
                    f"this run was begun on {_processes(begun)} and cannot go on on {_processes(now)}: start as many "
                    f"as before, or delete {self.path} to begin anew"
                )
        return saved

    def _read(self) -> dict[str, Any] | None:
        there = [path for path in (self.path, self.previous) if path is not None and path.exists()]
        for number, path in enumerate(there, start=1):
            try:
                saved = load_tree(path)
                if not {"seconds", "steps", "training"} <= saved["run"].keys():
                    raise KeyError("run")
                return saved
            except (BadInput, KeyError, TypeError) as error:
                after = "the one before it is used" if number < len(there) else "the run begins anew"
                warn(f"the checkpoint {path} is damaged, so {after} ({error})")
                path.unlink(missing_ok=True)  # else the next save would put it in the place of a good one
        return None

    def elapsed(self) -> float:
        """Seconds spent on this run, earlier attempts included."""
        return self.spent + time.monotonic() - self.started

    def fold(self, name: str) -> Saver:
        """A saver for a training inside this run, whose files lie beside its own and go with them."""
        path = None if self.path is None else self.path.with_name(f"{self.path.stem}.fold-{name}{self.path.suffix}")
        return Saver(path, seconds=self.seconds)

    def finish(self) -> None:
        if self.path is not None and self.previous is not None and parallel.is_first():
            for path in (self.path, self.previous, *self.path.parent.glob(f"{self.path.stem}.fold-*")):
                path.unlink(missing_ok=True)


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
