"""Stopping and going on: a saver that writes the state of a run at an interval and at a signal."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.core.checkpoint import load_tree, save_tree

_asked_to_stop = threading.Event()


class Interrupted(Exception):
    """The run was asked to stop, and its state is saved."""


@contextmanager
def stop_at_signal() -> Iterator[None]:
    """SIGINT and SIGTERM inside end the current step, save and raise Interrupted; a second SIGINT is at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if _asked_to_stop.is_set():
            raise KeyboardInterrupt
        _asked_to_stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        _asked_to_stop.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_if_asked() -> None:
    """Raise Interrupted if a signal came while nothing was running that could be saved."""
    if _asked_to_stop.is_set():
        raise Interrupted


class Saver:
    """The checkpoint of one run: due every `seconds` ($HOLDFAST_SAVE_SECONDS, or 30), gone when the run is finished."""

    def __init__(self, path: Path | None, *, seconds: float | None = None) -> None:
        self.path = path
        self.seconds = float(os.environ.get("HOLDFAST_SAVE_SECONDS", "30")) if seconds is None else seconds
        self.started = self.written = time.monotonic()
        self.done: list[dict[str, Any]] = []  # results of the stages before the one that is saved
        self.spent = 0.0  # seconds of earlier attempts
        self.steps, self.training = 0, 0.0  # steps taken and the seconds they took, over all attempts

    def due(self) -> bool:
        return _asked_to_stop.is_set() or (self.path is not None and time.monotonic() - self.written >= self.seconds)

    def save(self, state: dict[str, Any]) -> None:
        """Write the state; where the run was asked to stop, stop."""
        if self.path is not None:
            run = {"done": self.done, "seconds": self.elapsed(), "steps": self.steps, "training": self.training}
            save_tree(self.path, {"run": run, "fit": state})
            self.written = time.monotonic()
        if _asked_to_stop.is_set():
            raise Interrupted

    def load(self) -> dict[str, Any] | None:
        """What was saved, or None for a fresh start."""
        if self.path is None or not self.path.exists():
            return None
        saved = load_tree(self.path)
        self.spent, self.steps, self.training = (saved["run"][name] for name in ("seconds", "steps", "training"))
        return saved

    def elapsed(self) -> float:
        """Seconds spent on this run, earlier attempts included."""
        return self.spent + time.monotonic() - self.started

    def finish(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
