"""What a server takes on, and the refusals that are not the fault of the examples."""

from __future__ import annotations

from dataclasses import dataclass, fields

from holdfast.core.errors import BadInput


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times; what goes beyond is refused before it costs anything."""

    body: int = 8_000_000  # bytes of a request
    examples: int = 256  # of a request
    text: int = 20_000  # characters of one text, nodes or edges of one graph
    seconds: float = 30.0  # from a request's first byte to its answer
    batch: int = 64  # examples that are predicted at once
    wait: float = 0.005  # seconds that the first of a batch waits for others
    waiting: int = 4096  # examples that may be queued

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name != "wait"):
                raise BadInput(f"the limit on {field.name} must be above 0, not {value}")


class TooLarge(BadInput):
    """A request is larger than the server takes."""


class Busy(Exception):
    """The server cannot take this now; later it may."""
