"""A value that the calls inside a `with` can ask for, on this thread alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Held(threading.local, Generic[T]):
    """None, or what the innermost `hold` of this thread gave.

    It is a plain object and no context variable, because torch.compile looks through the one and breaks at the other.
    """

    def __init__(self) -> None:
        self.value: T | None = None

    @contextmanager
    def hold(self, value: T) -> Iterator[None]:
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before
