"""Leave one domain out: train and select on the others, be scored on the one never seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.core.errors import BadInput
from holdfast.data.splits import DomainRows, Part, RowsByDomain
from holdfast.protocols.plan import Episode, Stage, check_domain_names, require_domains


def unseen_stage(
    sources: Sequence[DomainRows],
    targets: Sequence[DomainRows],
    *,
    valid: float,
    seed: int,
    oracle: bool,
    inside: bool = False,
    scored: str = "test",
) -> Stage:
    """Train on the sources, score on the targets; the oracle gets a fifth of each target to choose by."""
    cuts = [share.train_valid(valid, seed) for share in sources]
    test, peek = tuple(t.test_part(scored) for t in targets), ()
    if oracle or inside:
        halves = [DomainRows(t.domain, t.test_part(scored).rows, {}).train_valid(valid, seed) for t in targets]
        test, peek = tuple(kept for kept, _ in halves), tuple(shown for _, shown in halves) if oracle else ()
    return Stage(tuple(train for train, _ in cuts), tuple(chosen for _, chosen in cuts), test, peek)


@dataclass(frozen=True)
class LeaveOneOut:
    """One episode per target domain."""

    valid: float = 0.2
    targets: tuple[str, ...] = ()  # all domains unless named
    inside: bool = False  # score on the target's in split, as DomainBed does: the rows that the oracle leaves
    scored: str = "test"  # which rows of the target, where it names splits: valid scores on its validation rows

    def episodes(self, shares: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(shares, 2, "leave-one-out")
        check_domain_names(self.targets, shares)
        for target in self.targets or tuple(shares):
            sources = [share for name, share in shares.items() if name != target]
            stage = unseen_stage(
                sources, [shares[target]], valid=self.valid, seed=seed,
                oracle=oracle, inside=self.inside, scored=self.scored,
            )  # fmt: skip
            yield Episode(f"to-{target}", (stage,))


@dataclass(frozen=True)
class CrossDataset:
    """One episode: all domains but the targets are sources, unless sources are named too."""

    targets: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    valid: float = 0.2

    def episodes(self, shares: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(shares, 2, "cross-dataset")
        if not self.targets:
            raise BadInput("the protocol cross-dataset needs its targets: --set plan.targets=NAME,NAME")
        for names in (self.targets, self.sources):
            check_domain_names(names, shares)
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


@dataclass(frozen=True)
class GivenSplit:
    """One episode; where nothing is marked valid, a share of the training rows is taken by the seed.

    A domain may have rows of one split alone: a domain of test rows was never seen, one of valid rows is chosen by.
    Without any marks each domain is cut by the seed into 70, 10 and 20 percent.
    """

    valid: float = 0.1
    test: float = 0.2

    def episodes(self, shares: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        if not any(share.splits for share in shares.values()):
            yield Episode("given", (self._drawn(shares, seed, oracle=oracle),))
            return
        train, valid, test = (_marked(shares, kind) for kind in ("train", "valid", "test"))
        if not train or not test:
            lacking = "test" if train else "train"
            raise BadInput(f"the protocol given needs rows marked {lacking} in the split column: mark some")
        if not valid:
            cuts = [DomainRows(part.domain, part.rows, {}).train_valid(self.valid, seed) for part in train]
            train, valid = tuple(kept for kept, _ in cuts), tuple(chosen for _, chosen in cuts)
        yield Episode("given", (_stage(train, valid, test, self.valid, seed, oracle=oracle),))

    def _drawn(self, shares: RowsByDomain, seed: int, *, oracle: bool) -> Stage:
        rest = self.valid / (1 - self.test) if self.test < 1 else 1.0  # a share of all rows, cut from those left
        cuts = [share.train_valid_test(rest, self.test, seed) for share in shares.values()]
        train, valid, test = (tuple(part) for part in zip(*cuts, strict=True))
        return _stage(train, valid, test, self.valid, seed, oracle=oracle)


def _stage(
    train: tuple[Part, ...], valid: tuple[Part, ...], test: tuple[Part, ...], share: float, seed: int, *, oracle: bool
) -> Stage:
    """The oracle gets a share of each scored part to choose by, which is then not scored."""
    if not oracle:
        return Stage(train, valid, test)
    halves = [DomainRows(part.domain, part.rows, {}).train_valid(share, seed) for part in test]
    return Stage(train, valid, tuple(kept for kept, _ in halves), tuple(shown for _, shown in halves))


def _marked(shares: RowsByDomain, kind: str) -> tuple[Part, ...]:
    found = ((name, share.splits.get(kind)) for name, share in shares.items())
    return tuple(Part(name, rows) for name, rows in found if rows is not None and len(rows))


@dataclass(frozen=True)
class InDomain:
    """One episode per domain: trained, selected and scored inside it."""

    valid: float = 0.2
    test: float = 0.2

    def episodes(self, shares: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        for name, share in shares.items():
            train, valid, test = share.train_valid_test(self.valid, self.test, seed)
            # inside the domain the target's validation rows are its own: the oracle sees nothing new
            yield Episode(f"in-{name}", (Stage((train,), (valid,), (test,), (valid,) if oracle else ()),))


@dataclass(frozen=True)
class AllDomains:
    """One episode on all domains, which holds nothing out for a test unless asked: how a model to be used is fitted."""

    valid: float = 0.2
    test: float = 0.0

    def episodes(self, shares: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        if self.test:
            parts = [share.train_valid_test(self.valid, self.test, seed) for share in shares.values()]
            yield Episode("all", (Stage(*(tuple(kind) for kind in zip(*parts, strict=True))),))
            return
        chosen_by = {name: share for name, share in shares.items() if share.validation_only()}
        if len(chosen_by) == len(shares):  # none is left to train on, which the cut below says
            chosen_by = {}
        cuts = [share.train_valid(self.valid, seed) for name, share in shares.items() if name not in chosen_by]
        valid = [*(v for _, v in cuts), *(Part(name, share.splits["valid"]) for name, share in chosen_by.items())]
        yield Episode("all", (Stage(tuple(t for t, _ in cuts), tuple(valid), ()),))


@dataclass(frozen=True)
class Joint:
    """One episode of one stage, which trains on every domain and is scored on the test rows a stream has."""

    valid: float = 0.2
    test: float = 0.2
    domains: tuple[str, ...] = ()  # all unless named

    def episodes(self, shares: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(shares, 2, "joint")
        check_domain_names(self.domains, shares)
        parts = [shares[name].train_valid_test(self.valid, self.test, seed) for name in self.domains or tuple(shares)]
        train, valid, test = (tuple(kind) for kind in zip(*parts, strict=True))
        # every target is trained on, so its validation rows are its own: the oracle sees nothing new
        yield Episode("joint", (Stage(train, valid, test, valid if oracle else ()),))


@dataclass(frozen=True)
class SingleSource:
    """One episode per source domain."""

    valid: float = 0.2
    sources: tuple[str, ...] = ()  # all domains unless named
    outside: bool = False  # score on the others' out split, as DomainBed calls it: the rows that would choose there

    def episodes(self, shares: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(shares, 2, "single-source")
        check_domain_names(self.sources, shares)
        for source in self.sources or tuple(shares):
            others = [share for name, share in shares.items() if name != source]
            stage = unseen_stage([shares[source]], others, valid=self.valid, seed=seed, oracle=oracle)
            if self.outside:
                halves = [share.train_valid(self.valid, seed) for share in others]
                peek = tuple(kept for kept, _ in halves) if oracle else ()
                stage = replace(stage, test=tuple(out for _, out in halves), oracle=peek)
            yield Episode(f"from-{source}", (stage,))


@dataclass(frozen=True)
class Stream:
    """One episode of one stage per domain, which trains and selects on that domain's data alone."""

    valid: float = 0.2
    test: float = 0.2
    order: tuple[str, ...] = ()  # as the data has them (by time, where it says) unless named

    def episodes(self, shares: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(shares, 2, "stream")
        check_domain_names(self.order, shares)
        names = self.order or tuple(shares)
        parts = {name: shares[name].train_valid_test(self.valid, self.test, seed) for name in names}
        tests = tuple(test for _, _, test in parts.values())
        stages = tuple(Stage((train,), (valid,), tests) for train, valid, _ in parts.values())
        yield Episode(">".join(names), stages)
