"""Joint: all domains at once, cut as a stream cuts them: what a stream could have learned with everything kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.data.splits import Shares
from holdfast.protocols.plan import Episode, Stage, known_domains, need_domains


@dataclass(frozen=True)
class Joint:
    """One episode of one stage, which trains on every domain and is scored on the test rows a stream has."""

    valid: float = 0.2
    test: float = 0.2
    domains: tuple[str, ...] = ()  # all unless named

    def episodes(self, shares: Shares, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        need_domains(shares, 2, "joint")
        known_domains(self.domains, shares)
        parts = [shares[name].three(self.valid, self.test, seed) for name in self.domains or tuple(shares)]
        train, valid, test = (tuple(kind) for kind in zip(*parts, strict=True))
        # every target is trained on, so its validation rows are its own: the oracle sees nothing new
        yield Episode("joint", (Stage(train, valid, test, valid if oracle else ()),))
