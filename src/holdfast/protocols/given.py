"""The data's own split: rows marked train, valid and test in any domain, as a benchmark publishes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.core.errors import BadInput
from holdfast.data.splits import Part, Share, Shares
from holdfast.protocols.plan import Episode, Stage


@dataclass(frozen=True)
class Given:
    """One episode; where nothing is marked valid, a share of the training rows is taken by the seed.

    A domain may have rows of one split alone: a domain of test rows was never seen, one of valid rows is chosen by.
    Without any marks each domain is cut by the seed into 70, 10 and 20 percent.
    """

    valid: float = 0.1
    test: float = 0.2

    def episodes(self, shares: Shares, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        if not any(share.given for share in shares.values()):
            yield Episode("given", (self._drawn(shares, seed, oracle=oracle),))
            return
        train, valid, test = (_marked(shares, kind) for kind in ("train", "valid", "test"))
        if not train or not test:
            lacking = "test" if train else "train"
            raise BadInput(f"the protocol given needs rows marked {lacking} in the split column: mark some")
        if not valid:
            cuts = [Share(part.domain, part.rows, {}).two(self.valid, seed) for part in train]
            train, valid = tuple(kept for kept, _ in cuts), tuple(chosen for _, chosen in cuts)
        yield Episode("given", (_stage(train, valid, test, self.valid, seed, oracle=oracle),))

    def _drawn(self, shares: Shares, seed: int, *, oracle: bool) -> Stage:
        rest = self.valid / (1 - self.test) if self.test < 1 else 1.0  # a share of all rows, cut from those left
        cuts = [share.three(rest, self.test, seed) for share in shares.values()]
        train, valid, test = (tuple(part) for part in zip(*cuts, strict=True))
        return _stage(train, valid, test, self.valid, seed, oracle=oracle)


def _stage(
    train: tuple[Part, ...], valid: tuple[Part, ...], test: tuple[Part, ...], share: float, seed: int, *, oracle: bool
) -> Stage:
    """The oracle gets a share of each scored part to choose by, which is then not scored."""
    if not oracle:
        return Stage(train, valid, test)
    halves = [Share(part.domain, part.rows, {}).two(share, seed) for part in test]
    return Stage(train, valid, tuple(kept for kept, _ in halves), tuple(shown for _, shown in halves))


def _marked(shares: Shares, kind: str) -> tuple[Part, ...]:
    found = ((name, share.given.get(kind)) for name, share in shares.items())
    return tuple(Part(name, rows) for name, rows in found if rows is not None and len(rows))
