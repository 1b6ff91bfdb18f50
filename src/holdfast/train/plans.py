"""The plans of the catalog, and groups of domains that are held out together where there are many.

Shapes: n domains, s strata.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator
from holdfast.data.splits import DomainRows, Part, RowsByDomain
from holdfast.defaults import FEW_DOMAINS
from holdfast.train.plan import Episode, Stage, check_domain_names, require_domains

Parts = tuple[Part, ...]
VALID, VALID_ROWS, LEAST_VALID = 0.2, 1000, 0.05  # share of the rows that validate, at most; rows; share at least


def _split(groups: Sequence[DomainRows | Part], valid: float, seed: int) -> tuple[Parts, Parts]:
    """Split the rows of every domain into training and validation rows.

    A domain with a single row only trains. One without a row to train on is left out if there are more than
    `FEW_DOMAINS`; with fewer domains, and if no domain has two rows, it is an error.
    """
    train, chosen = _pairs(groups, valid, seed, least=1 if len(groups) <= FEW_DOMAINS else 0)
    return (train, chosen) if chosen else _pairs(groups, valid, seed, least=2)  # raises


def _pairs(groups: Sequence[DomainRows | Part], valid: float, seed: int, *, least: int) -> tuple[Parts, Parts]:
    rows = [group if isinstance(group, DomainRows) else DomainRows(group.domain, group.rows, {}) for group in groups]
    pairs = [group.train_valid(valid, seed, least=least) for group in rows]
    return tuple(train for train, _ in pairs if len(train)), tuple(chosen for _, chosen in pairs if len(chosen))


def _split_three(groups: Sequence[DomainRows], valid: float, test: float, seed: int) -> tuple[Parts, Parts, Parts]:
    """Split the rows of every domain into training, validation and test rows."""
    triples = [group.train_valid_test(valid, test, seed) for group in groups]
    return tuple(t for t, _, _ in triples), tuple(v for _, v, _ in triples), tuple(s for _, _, s in triples)


def validation_share(groups: Sequence[DomainRows]) -> float:
    """Return the share of the rows that validate by default: a fifth, and of large data about `VALID_ROWS` rows.

    The rest trains: a model that is compared with one trained on all rows must not lose more of them than needed.
    """
    return min(VALID, max(LEAST_VALID, VALID_ROWS / max(1, sum(len(group.rows) for group in groups))))


def unseen_stage(
    sources: Sequence[DomainRows], targets: Sequence[DomainRows], *, valid: float | None, seed: int, oracle: bool,
    inside: bool = False, scored: str = "test",
) -> Stage:  # fmt: skip
    """Train on the sources and score on the targets; the oracle gets a share of every target, `VALID` by default.

    Sources without a row that is marked for training are left out, unless no source has one.
    """
    sources = [source for source in sources if not source.only_tests()] or sources
    share = VALID if inside else validation_share(sources)
    train, chosen = _split(sources, share if valid is None else valid, seed)
    valid = VALID if valid is None else valid
    test: Parts = tuple(target.test_part(scored) for target in targets)
    shown: Parts = ()
    if oracle or inside:
        test, shown = _pairs(test, valid, seed, least=1 if len(sources) + len(targets) <= FEW_DOMAINS else 0)
    return Stage(train, chosen, test, shown if oracle else ())


@dataclass(frozen=True)
class LeaveOneOut:
    """One episode per target domain: train and select on the other domains, score on the target."""

    valid: float | None = None  # default: `validation_share`, or with `inside` the share of DomainBed, 0.2
    targets: tuple[str, ...] = ()  # default: all domains
    inside: bool = False  # score on the target's in split, as DomainBed does: the rows that the oracle does not get
    scored: str = "test"  # split of the target that is scored, where the data has splits: test or valid

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(domains, 2, "leave-one-out")
        check_domain_names(self.targets, domains)
        for target in self.targets or tuple(domains):
            sources = [rows for name, rows in domains.items() if name != target]
            stage = unseen_stage(
                sources, [domains[target]], valid=self.valid, seed=seed,
                oracle=oracle, inside=self.inside, scored=self.scored,
            )  # fmt: skip
            yield Episode(f"to-{target}", (stage,))


@dataclass(frozen=True)
class CrossDataset:
    """One episode from source domains (default: all others) to target domains."""

    targets: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    valid: float = 0.2

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(domains, 2, "cross-dataset")
        if not self.targets:
            raise BadInput("the protocol cross-dataset needs targets: use --set plan.targets=NAME,NAME")
        for names in (self.targets, self.sources):
            check_domain_names(names, domains)
        sources = self.sources or tuple(name for name in domains if name not in self.targets)
        both = sorted(set(sources) & set(self.targets))
        if both or not sources:
            raise BadInput(f"sources and targets must differ and not be empty; in both: {both or 'none'}")
        stage = unseen_stage(
            [domains[s] for s in sources], [domains[t] for t in self.targets],
            valid=self.valid, seed=seed, oracle=oracle,
        )  # fmt: skip
        yield Episode(f"{'+'.join(sources)}-to-{'+'.join(self.targets)}", (stage,))


@dataclass(frozen=True)
class GivenSplit:
    """One episode on the splits of the data; without rows marked valid, a share of the training rows is used.

    A domain may have rows of one split only. Data without splits is split at random into 70, 10 and 20 percent.
    """

    valid: float = 0.1
    test: float = 0.2

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        if any(rows.splits for rows in domains.values()):
            train, valid, test = (_marked(domains, split) for split in ("train", "valid", "test"))
            if not train or not test:
                lacking = "test" if train else "train"
                raise BadInput(f"the protocol given needs rows marked {lacking} in the split column: mark some")
            if not valid:
                train, valid = _split(train, self.valid, seed)
        else:
            rest = self.valid / (1 - self.test) if self.test < 1 else 1.0  # as a share of the rows that remain
            train, valid, test = _split_three(list(domains.values()), rest, self.test, seed)
        test, shown = _split(test, self.valid, seed) if oracle else (test, ())
        yield Episode("given", (Stage(train, valid, test, shown),))


def _marked(domains: RowsByDomain, split: str) -> Parts:
    marked = ((name, rows.splits.get(split)) for name, rows in domains.items())
    return tuple(Part(name, rows) for name, rows in marked if rows is not None and len(rows))


@dataclass(frozen=True)
class InDomain:
    """One episode per domain: train, select and score on rows of that domain."""

    valid: float = 0.2
    test: float = 0.2

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        for name, rows in domains.items():
            train, valid, test = rows.train_valid_test(self.valid, self.test, seed)
            # the target's validation rows are those of the domain, so the oracle gets nothing new
            yield Episode(f"in-{name}", (Stage((train,), (valid,), (test,), (valid,) if oracle else ()),))


@dataclass(frozen=True)
class KFold:
    """One episode per fold: train and select on the other folds of all domains, score on the fold.

    The seed draws the folds; the splits of the data are ignored, so every row is scored once per seed. With `rotate`
    a seed has one episode, so that runs with different seeds are paired as usual: seed s uses fold s mod `folds` of the
    partition that is drawn by s // `folds`.
    """

    folds: int = 5
    valid: float = 0.1  # share of the other folds
    rotate: bool = False

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        smallest = min(domains.values(), key=lambda group: len(group.rows))
        if not isinstance(self.folds, int) or not 2 <= self.folds <= len(smallest.rows):
            raise BadInput(
                f"plan.folds must be from 2 to the {len(smallest.rows)} examples of domain '{smallest.domain}', "
                f"got {self.folds}"
            )
        partition, chosen = divmod(seed, self.folds) if self.rotate else (seed, None)
        cuts = {name: _shuffled_folds(rows, self.folds, partition) for name, rows in domains.items()}
        for fold in range(self.folds) if chosen is None else (chosen,):
            rest = [
                Part(name, np.sort(np.concatenate([*pieces[:fold], *pieces[fold + 1 :]])))
                for name, pieces in cuts.items()
            ]
            train, valid = _split(rest, self.valid, seed)
            test = tuple(Part(name, np.sort(pieces[fold])) for name, pieces in cuts.items())
            # the fold's domains are trained on, so the validation rows are those of the oracle
            name = f"fold-{fold + 1}" if chosen is None else "fold"
            yield Episode(name, (Stage(train, valid, test, valid if oracle else ()),))


def _shuffled_folds(group: DomainRows, folds: int, seed: int) -> list[np.ndarray]:
    order = torch.randperm(len(group.rows), generator=generator(seed, "folds", group.domain)).numpy()
    return np.array_split(group.rows[order], folds)


@dataclass(frozen=True)
class AllDomains:
    """One episode on all domains, by default without test rows: for a model that will be deployed."""

    valid: float | None = None  # default: `validation_share`, or with test rows 0.2
    test: float = 0.0

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        if self.test:
            valid = VALID if self.valid is None else self.valid
            yield Episode("all", (Stage(*_split_three(list(domains.values()), valid, self.test, seed)),))
            return
        selecting = {name: rows for name, rows in domains.items() if rows.validation_only()}
        if len(selecting) == len(domains):  # no domain is left to train on, which the split below reports
            selecting = {}
        groups = [rows for name, rows in domains.items() if name not in selecting]
        train, valid = _split(groups, validation_share(groups) if self.valid is None else self.valid, seed)
        valid += tuple(Part(name, rows.splits["valid"]) for name, rows in selecting.items())
        yield Episode("all", (Stage(train, valid, ()),))


@dataclass(frozen=True)
class Joint:
    """One episode that trains on all domains at once and is scored on the test rows of a stream."""

    valid: float = 0.2
    test: float = 0.2
    domains: tuple[str, ...] = ()  # default: all

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(domains, 2, "joint")
        check_domain_names(self.domains, domains)
        chosen = [domains[name] for name in self.domains or tuple(domains)]
        train, valid, test = _split_three(chosen, self.valid, self.test, seed)
        # every target is trained on, so its validation rows are those of the oracle
        yield Episode("joint", (Stage(train, valid, test, valid if oracle else ()),))


@dataclass(frozen=True)
class SingleSource:
    """One episode per source domain: train and select on it, score on all others."""

    valid: float = 0.2
    sources: tuple[str, ...] = ()  # default: all domains
    outside: bool = False  # score on the others' out split, in the terms of DomainBed: their validation rows

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(domains, 2, "single-source")
        check_domain_names(self.sources, domains)
        for source in self.sources or tuple(domains):
            others = [rows for name, rows in domains.items() if name != source]
            stage = unseen_stage([domains[source]], others, valid=self.valid, seed=seed, oracle=oracle)
            if self.outside:
                inside, outside = _split(others, self.valid, seed)
                stage = replace(stage, test=outside, oracle=inside if oracle else ())
            yield Episode(f"from-{source}", (stage,))


@dataclass(frozen=True)
class Stream:
    """One episode with one stage per domain, which trains and selects on the data of that domain only."""

    valid: float = 0.2
    test: float = 0.2
    order: tuple[str, ...] = ()  # default: the order of the data, by time where it has times

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(domains, 2, "stream")
        check_domain_names(self.order, domains)
        names = self.order or tuple(domains)
        trains, valids, tests = _split_three([domains[name] for name in names], self.valid, self.test, seed)
        stages = tuple(Stage((train,), (valid,), tests) for train, valid in zip(trains, valids, strict=True))
        yield Episode(">".join(names), stages)


def balanced_groups(counts: Mapping[str, np.ndarray], groups: int) -> list[list[str]]:
    """Divide domains into groups that are balanced in rows and in strata, such as classes.

    `counts` maps each domain to its number of rows per stratum. Domains are assigned one after another, the largest
    first, each to the group that lacks most of what the domain has. The result depends on nothing but the counts and
    the order of the domains; a group keeps that order, and at most one group per domain is returned.
    """
    names = list(counts)
    table = np.stack([counts[name] for name in names]).astype(np.float64)  # (n, s)
    rows, totals = table.sum(axis=1), table.sum(axis=0)
    total = max(1.0, rows.sum())
    # the squared deviation of a group from its share, summed over rows and strata: as chi squared, it is relative to
    # the size of a stratum, so that a rare class does not count more than the number of rows
    features = np.column_stack([table / np.sqrt(np.maximum(1.0, totals) * total), rows / total])
    groups = min(groups, len(names))
    loads, assigned = np.zeros((groups, features.shape[1])), np.zeros(groups)
    members: list[list[int]] = [[] for _ in range(groups)]
    for domain in np.argsort(-rows, kind="stable").tolist():
        group = int(np.lexsort((assigned, (loads @ features[domain]).round(12)))[0])
        loads[group] += features[domain]
        assigned[group] += 1
        members[group].append(domain)
    return [[names[domain] for domain in sorted(group)] for group in members]


def strata_counts(domains: Sequence[DomainRows]) -> dict[str, np.ndarray]:
    """Return the number of rows per stratum of each domain."""
    largest = [int(rows.strata.max()) for rows in domains if rows.strata is not None and len(rows.strata)]
    return {rows.domain: rows.counts(1 + max(largest, default=0)) for rows in domains}


@dataclass(frozen=True)
class LeaveGroupsOut:
    """One episode per fold of domains: train and select on the other folds, score every domain of the fold.

    The folds are balanced in rows and classes, or in quantile bins of numeric targets. They do not depend on the seed,
    so that runs with different seeds are paired per domain. Domains outside `targets` train in every episode.
    """

    folds: int = 5  # at most one per target
    valid: float | None = None  # default: `validation_share`
    targets: tuple[str, ...] = ()  # default: all domains
    scored: str = "test"  # split of the targets that is scored, where the data has splits: test or valid

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        require_domains(domains, 2, "leave-groups-out")
        check_domain_names(self.targets, domains)
        if not isinstance(self.folds, int) or self.folds < 2:
            raise BadInput(f"plan.folds must be an integer of at least 2, got {self.folds!r}")
        targets = [domains[name] for name in self.targets or tuple(domains)]
        groups = balanced_groups(strata_counts(targets), self.folds)
        for number, group in enumerate(groups, 1):
            held_out = set(group)
            stage = unseen_stage(
                [rows for name, rows in domains.items() if name not in held_out], [domains[name] for name in group],
                valid=self.valid, seed=seed, oracle=oracle, scored=self.scored,
            )  # fmt: skip
            yield Episode(f"fold-{number}-of-{len(groups)}", (stage,), f"fold {number} of {len(groups)}")
