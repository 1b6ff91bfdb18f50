"""Plans without an unseen domain: each domain by itself (the upper reference), or all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.data.splits import Part, Shares
from holdfast.protocols.plan import Episode, Stage


@dataclass(frozen=True)
class InDomain:
    """One episode per domain: trained, selected and scored inside it."""

    valid: float = 0.2
    test: float = 0.2

    def episodes(self, shares: Shares, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        for name, share in shares.items():
            train, valid, test = share.three(self.valid, self.test, seed)
            # inside the domain the target's validation rows are its own: the oracle sees nothing new
            yield Episode(f"in-{name}", (Stage((train,), (valid,), (test,), (valid,) if oracle else ()),))


@dataclass(frozen=True)
class Everything:
    """One episode on all domains, which holds nothing out for a test unless asked: how a model to be used is fitted."""

    valid: float = 0.2
    test: float = 0.0

    def episodes(self, shares: Shares, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        if self.test:
            parts = [share.three(self.valid, self.test, seed) for share in shares.values()]
            yield Episode("all", (Stage(*(tuple(kind) for kind in zip(*parts, strict=True))),))
            return
        chosen_by = {name: share for name, share in shares.items() if share.only_chooses()}
        if len(chosen_by) == len(shares):  # none is left to train on, which the cut below says
            chosen_by = {}
        cuts = [share.two(self.valid, seed) for name, share in shares.items() if name not in chosen_by]
        valid = [*(v for _, v in cuts), *(Part(name, share.given["valid"]) for name, share in chosen_by.items())]
        yield Episode("all", (Stage(tuple(t for t, _ in cuts), tuple(valid), ()),))
