"""Leave one domain out: train and select on the others, be scored on the one never seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.data.splits import Share, Shares
from holdfast.protocols.plan import Episode, Stage, known_domains, need_domains


def unseen_stage(
    sources: Sequence[Share],
    targets: Sequence[Share],
    *,
    valid: float,
    seed: int,
    oracle: bool,
    inside: bool = False,
    scored: str = "test",
) -> Stage:
    """Train on the sources, score on the targets; the oracle gets a fifth of each target to choose by."""
    cuts = [share.two(valid, seed) for share in sources]
    test, peek = tuple(t.tested(scored) for t in targets), ()
    if oracle or inside:
        halves = [Share(t.domain, t.tested(scored).rows, {}).two(valid, seed) for t in targets]
        test, peek = tuple(kept for kept, _ in halves), tuple(shown for _, shown in halves) if oracle else ()
    return Stage(tuple(train for train, _ in cuts), tuple(chosen for _, chosen in cuts), test, peek)


@dataclass(frozen=True)
class LeaveOneOut:
    """One episode per target domain."""

    valid: float = 0.2
    targets: tuple[str, ...] = ()  # all domains unless named
    inside: bool = False  # score on the target's in split, as DomainBed does: the rows that the oracle leaves
    scored: str = "test"  # which rows of the target, where it names splits: valid scores on its validation rows

    def episodes(self, shares: Shares, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        need_domains(shares, 2, "leave-one-out")
        known_domains(self.targets, shares)
        for target in self.targets or tuple(shares):
            sources = [share for name, share in shares.items() if name != target]
            stage = unseen_stage(
                sources, [shares[target]], valid=self.valid, seed=seed,
                oracle=oracle, inside=self.inside, scored=self.scored,
            )  # fmt: skip
            yield Episode(f"to-{target}", (stage,))
