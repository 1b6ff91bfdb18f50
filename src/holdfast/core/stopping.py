"""Reasons to stop between two steps: a signal, or a deadline.

Training loops, solvers, encoding and scoring call `stop_if_requested` between their steps. A run that is stopped saves
its state first, so that the same command continues.
"""

from __future__ import annotations

import math
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core import parallel
from holdfast.core.errors import BadInput

TIME = 1 << 10  # the reason of a deadline; other reasons are numbers of signals
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
UNLIMITED = "none"


class Interrupted(Exception):
    """The run was stopped and its state is saved; the first argument is the reason."""


class TimeUp(Interrupted):
    """The deadline has passed; what has finished is used."""


class Deadline:
    """A number of seconds from a start, by a clock that all processes of this machine share."""

    seconds: float
    started: float

    def __init__(self, seconds: float = math.inf, *, started: float | None = None) -> None:
        self.seconds = seconds
        self.started = time.monotonic() if started is None else started

    def left(self) -> float:
        """Return the seconds left, negative after the end; inf without a limit."""
        return self.seconds - (time.monotonic() - self.started)

    def passed(self) -> bool:
        """Whether the time is up."""
        return self.left() <= 0

    def earlier(self, seconds: float) -> Deadline:
        """Return the deadline that is this number of seconds before this one."""
        return Deadline(self.seconds - seconds, started=self.started)


class _StopRequest(threading.Event):
    reason: int = signal.SIGINT


_request = _StopRequest()
_deadlines: list[Deadline] = []


@contextmanager
def until(deadline: Deadline) -> Iterator[None]:
    """Stop what runs inside with `TimeUp` when the deadline has passed; the innermost deadline counts."""
    _deadlines.append(deadline)
    try:
        yield
    finally:
        _deadlines.pop()
        if _request.is_set() and _request.reason == TIME:  # another process noticed the end first
            _request.clear()


def request_stop(reason: int = signal.SIGINT) -> None:
    """Request a stop as a signal does."""
    _request.reason = reason
    _request.set()


def withdraw_request() -> None:
    """Forget a request to stop."""
    _request.clear()


def reason_to_stop() -> int:
    """Return the number of the signal that requested a stop, `TIME` after the deadline, or 0."""
    if _request.is_set():
        return int(_request.reason)
    return TIME if _deadlines and _deadlines[-1].passed() else 0


def stop(reason: int) -> None:
    """Raise the exception for a reason, if there is one."""
    if reason:
        raise TimeUp(reason) if reason == TIME else Interrupted(reason)


def stop_if_requested() -> None:
    """Raise `Interrupted` if there is a reason to stop; in a distributed run no process stops by itself."""
    if not parallel.active():
        stop(reason_to_stop())


def stop_all_if_requested() -> None:
    """Raise `Interrupted` in all processes if there is a reason to stop in one of them."""
    stop(parallel.all_max(reason_to_stop())[0])


def parse_duration(text: str) -> float:
    """Return seconds from `90s`, `2m` or `1.5h`; inf for `none`."""
    if text == UNLIMITED:
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    if match is None or not float(match[1]):
        raise BadInput(f"--budget takes a duration such as 90s, 2m or 1h, or none; got '{text}'")
    return float(match[1]) * UNITS[match[2]]


def format_seconds(seconds: float) -> str:
    """Return a duration in words: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s" if total % 60 else f"{total // 60} min"
    return f"{total // 3600} h {total % 3600 // 60} min"
