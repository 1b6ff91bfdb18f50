"""Runs that end in the middle, as if their process was killed."""

from collections.abc import Callable


class Killed(Exception):
    """Ends a run between two steps."""


def killer(at: int) -> Callable[[object], None]:
    """Return a function that raises in its call number `at`, for the steps of a run."""
    count = 0

    def tick(metrics: object) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise Killed

    return tick
