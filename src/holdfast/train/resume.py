"""Stopping and resuming: signals, and the checkpoint of a run."""

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
from holdfast.core.stopping import TIME, reason_to_stop, request_stop, stop, withdraw_request


@contextmanager
def stop_at_signal() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the current step, save and raise `Interrupted`; a second SIGINT stops at once.

    A launcher of several processes may send a signal twice and kills processes that take too long, so that they ignore
    a second signal.
    """
    # Python lets only the main thread install signal handlers
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        # the second signal; a deadline that has passed is not a first one
        if reason_to_stop() not in (0, TIME):
            if parallel.active():
                return
            raise KeyboardInterrupt
        request_stop(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        # read the reason first: the request is withdrawn so that a later run of this process is not stopped by it
        leaving = parallel.active() and reason_to_stop() not in (0, TIME)
        withdraw_request()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if leaving else handler)


class Saver:
    """The checkpoint of a run: saved every `seconds` ($HOLDFAST_SAVE_SECONDS, default 30), deleted when it is finished.

    The previous checkpoint is kept in case the newest is damaged.
    """

    def __init__(self, path: Path | None, *, seconds: float | None = None) -> None:
        self.path = path
        self.previous = None if path is None else path.with_name(f"{path.name}.previous")
        self.seconds = float(os.environ.get("HOLDFAST_SAVE_SECONDS", "30")) if seconds is None else seconds
        self.started = self.written = time.monotonic()
        self.done: list[dict[str, Any]] = []  # results of finished stages
        self.spent = 0.0  # seconds of earlier attempts
        self.steps, self.training = 0, 0.0  # steps and their seconds, over all attempts
        self.reason = ""  # why an earlier attempt with other settings ended

    def due(self) -> bool:
        """Whether to save now, because the interval has passed or some process has a reason to stop."""
        # saving and stopping involve all processes, so all of them must decide the same at the same step
        reason, late = parallel.all_max(reason_to_stop(), int(self._waited(self.seconds)))
        if reason and not reason_to_stop():
            request_stop(reason)
        return bool(reason or late)

    def _waited(self, seconds: float) -> bool:
        return self.path is not None and parallel.is_first() and time.monotonic() - self.written >= seconds

    def save(self, state: dict[str, Any]) -> None:
        """Write the state, then stop if there is a reason to."""
        if self.path is not None and self.previous is not None and parallel.is_first():
            # move the complete checkpoint away before writing, so that there is one at any time
            with suppress(OSError):  # there may be no checkpoint yet
                os.replace(self.path, self.previous)
            run = {"done": self.done, "seconds": self.elapsed(), "steps": self.steps, "training": self.training}
            run |= {"reason": self.reason} if self.reason else {}
            save_tree(self.path, {"run": {**run, "processes": parallel.world_size()}, "fit": state})
            self.written = time.monotonic()
        if reason := reason_to_stop():
            parallel.all_max(0)  # wait until the first process has written
            stop(reason)

    def load(self) -> dict[str, Any] | None:
        """Return the newest checkpoint that is not damaged, or None."""
        saved = parallel.from_first(self._read)
        if saved is not None:
            run = saved["run"]
            self.spent, self.steps, self.training = (run[name] for name in ("seconds", "steps", "training"))
            self.reason = run.get("reason", "")
            # a checkpoint has one state per process, and every process has its share of each batch
            count, now = run.get("processes", 1), parallel.world_size()
            if count != now:
                processes = "1 process" if count == 1 else f"{count} processes"
                fix = f"resume with {processes} or delete {self.path}"
                raise BadInput(f"checkpoint was written by {processes}, and this run has {now}: {fix}")
        return saved

    def _read(self) -> dict[str, Any] | None:
        existing = [path for path in (self.path, self.previous) if path is not None and path.exists()]
        # newest first; the checksum of the file shows whether it is complete
        for number, path in enumerate(existing, start=1):
            try:
                saved = load_tree(path)
                if not {"seconds", "steps", "training"} <= saved["run"].keys():
                    raise KeyError("run")
                return saved
            except (BadInput, KeyError, TypeError) as error:
                consequence = "the previous one is used" if number < len(existing) else "the run starts again"
                warn(f"the checkpoint {path} is damaged, so {consequence} ({error})")
                path.unlink(missing_ok=True)  # otherwise the next save would replace a good one with it
        return None

    def elapsed(self) -> float:
        """Return the seconds spent on this run, including earlier attempts."""
        return self.spent + time.monotonic() - self.started

    def fold(self, name: str) -> Saver:
        """Return a saver for a training inside this run; its files are deleted with those of the run."""
        path = None if self.path is None else self.path.with_name(f"{self.path.stem}.fold-{name}{self.path.suffix}")
        return Saver(path, seconds=self.seconds)

    def exists(self) -> bool:
        """Whether there is a checkpoint."""
        paths = [path for path in (self.path, self.previous) if path is not None and path.exists()]
        return bool(parallel.from_first(lambda: len(paths)))

    def follow(self, earlier: Saver, reason: str) -> None:
        """Add the cost of an earlier attempt, which ended for this reason."""
        # the clock starts now, since `spent` includes the earlier attempt up to this moment
        self.reason, self.spent = reason, earlier.elapsed()
        self.steps, self.training = earlier.steps, earlier.training
        self.started = time.monotonic()

    def finish(self) -> None:
        """Delete the checkpoints."""
        if self.path is not None and self.previous is not None and parallel.is_first():
            for path in (self.path, self.previous, *self.path.parent.glob(f"{self.path.stem}.fold-*")):
                path.unlink(missing_ok=True)
