"""Single source: train on one domain, be scored on every other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.data.splits import Shares
from holdfast.protocols.leave_one_out import unseen_stage
from holdfast.protocols.plan import Episode, known_domains, need_domains


@dataclass(frozen=True)
class SingleSource:
    """One episode per source domain."""

    valid: float = 0.2
    sources: tuple[str, ...] = ()  # all domains unless named
    outside: bool = False  # score on the others' out split, as DomainBed calls it: the rows that would choose there

    def episodes(self, shares: Shares, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        need_domains(shares, 2, "single-source")
        known_domains(self.sources, shares)
        for source in self.sources or tuple(shares):
            others = [share for name, share in shares.items() if name != source]
            stage = unseen_stage([shares[source]], others, valid=self.valid, seed=seed, oracle=oracle)
            if self.outside:
                halves = [share.two(self.valid, seed) for share in others]
                peek = tuple(kept for kept, _ in halves) if oracle else ()
                stage = replace(stage, test=tuple(out for _, out in halves), peek=peek)
            yield Episode(f"from-{source}", (stage,))
