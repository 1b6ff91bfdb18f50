"""Stream: the domains arrive one after another; after each, every domain is scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.data.splits import Shares
from holdfast.protocols.plan import Episode, Stage, known_domains, need_domains


@dataclass(frozen=True)
class Stream:
    """One episode of one stage per domain, which trains and selects on that domain's data alone."""

    valid: float = 0.2
    test: float = 0.2
    order: tuple[str, ...] = ()  # as the data has them (by time, where it says) unless named

    def episodes(self, shares: Shares, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        need_domains(shares, 2, "stream")
        known_domains(self.order, shares)
        names = self.order or tuple(shares)
        parts = {name: shares[name].three(self.valid, self.test, seed) for name in names}
        tests = tuple(test for _, _, test in parts.values())
        stages = tuple(Stage((train,), (valid,), tests) for train, valid, _ in parts.values())
        yield Episode(">".join(names), stages)
