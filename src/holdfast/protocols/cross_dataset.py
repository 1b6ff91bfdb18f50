"""Cross data set: train on some domains, be scored on others that come from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.core.errors import BadInput
from holdfast.data.splits import Shares
from holdfast.protocols.leave_one_out import unseen_stage
from holdfast.protocols.plan import Episode, known_domains, need_domains


@dataclass(frozen=True)
class CrossDataset:
    """One episode: all domains but the targets are sources, unless sources are named too."""

    targets: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    valid: float = 0.2

    def episodes(self, shares: Shares, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        need_domains(shares, 2, "cross-dataset")
        if not self.targets:
            raise BadInput("the protocol cross-dataset needs its targets: --set plan.targets=NAME,NAME")
        for names in (self.targets, self.sources):
            known_domains(names, shares)
        sources = self.sources or tuple(name for name in shares if name not in self.targets)
        both = sorted(set(sources) & set(self.targets))
        if both or not sources:
            raise BadInput(f"sources and targets must differ and not be empty; in both: {both or 'none'}")
        stage = unseen_stage(
            [shares[s] for s in sources],
            [shares[t] for t in self.targets],
            valid=self.valid,
            seed=seed,
            oracle=oracle,
        )
        yield Episode(f"{'+'.join(sources)}-to-{'+'.join(self.targets)}", (stage,))
