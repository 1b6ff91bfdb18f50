"""Board: where runs on a cluster pin how far they are, for the driver to read; it needs nothing but Python."""

from __future__ import annotations


class Board:
    """An actor of Ray beside the driver; runs that last long tell it their steps now and then."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def tell(self, id: str, steps: int) -> None:
        self.steps[id] = steps

    def take(self) -> dict[str, int]:
        """What was told since the last time."""
        told, self.steps = self.steps, {}
        return told
