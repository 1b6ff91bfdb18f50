"""Single source: train on one domain, be scored on every other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.data.splits import Shares
from holdfast.protocols.leave_one_out import unseen_stage
from holdfast.protocols.plan import Episode, known_domains, need_domains


@dataclass(frozen=True)
class SingleSource:
    """One episode per source domain."""

    valid: float = 0.2
    sources: tuple[str, ...] = ()  # all domains unless named

    def episodes(self, shares: Shares, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        need_domains(shares, 2, "single-source")
        known_domains(self.sources, shares)
        for source in self.sources or tuple(shares):
            others = [share for name, share in shares.items() if name != source]
            stage = unseen_stage([shares[source]], others, valid=self.valid, seed=seed, oracle=oracle)
            yield Episode(f"from-{source}", (stage,))
