"""Stages and episodes: which rows of which domains a run trains on, validates on and is scored on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.splits import Part, RowsByDomain
from holdfast.defaults import FEW_DOMAINS

TITLE_LENGTH = 40  # characters of the title of an episode
MIN_ROWS = 10  # of a domain that has a metric of its own, where there are many domains


@dataclass(frozen=True, eq=False)
class Stage:
    """Rows to train on, to select by and to be scored on; `oracle` has target rows for selection by the oracle.

    Rows to adapt to have no labels, so that they are in none of the others.
    """

    train: tuple[Part, ...]
    valid: tuple[Part, ...]
    test: tuple[Part, ...]
    oracle: tuple[Part, ...] = ()
    unlabelled: tuple[Part, ...] = ()  # inputs that methods may adapt to

    def __post_init__(self) -> None:
        groups = (self.train, self.valid, self.test, self.oracle, self.unlabelled)
        train, valid, test, oracle, unlabelled = map(rows_of, groups)
        for name, a, b in (
            ("training and validation", train, valid),
            ("training and test", train, test),
            ("validation and test", valid, test),
            ("training and oracle", train, oracle),
            ("oracle and test", oracle, test),
            *(("unlabelled and labelled", unlabelled, rows) for rows in (train, valid, test, oracle)),
        ):
            shared = _shared(a, b)
            if len(shared):
                raise ValueError(f"{len(shared)} rows are in both {name}, such as row {shared[0]}")


@dataclass(frozen=True, eq=False)
class Episode:
    """One training; a stream has one stage per domain."""

    name: str  # part of the identity of a record
    stages: tuple[Stage, ...]
    label: str = ""  # a readable name; default: the name, shortened if it lists many domains

    @property
    def title(self) -> str:
        """Return a short readable name for progress, tables and messages."""
        return self.label or short_title(self.name)


@dataclass(frozen=True, eq=False)
class PastStages:
    """Stages that a network was trained on before a run: their number, and their training rows if available."""

    count: int
    data: tuple[Part, ...] = ()


class Plan(Protocol):
    """Generator of episodes; the fields of a plan are its settings."""

    def episodes(self, domains: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]:
        """Yield the episodes; with `oracle` their stages have target rows to select by."""
        ...


def short_title(name: str) -> str:
    """Shorten the name of an episode that lists many domains: `a+b+c+d-to-e` is `4 domains to e`."""
    if len(name) <= TITLE_LENGTH:
        return name
    if ">" in name:
        names = name.split(">")
        return f"{_first(names[0])} to {_first(names[-1])}, {len(names)} stages"
    sources, to, targets = name.partition("-to-")
    sides = [f"{count} domains" if (count := side.count("+") + 1) > 2 else _first(side) for side in (sources, targets)]
    return " to ".join(sides) if to else _first(name)


def _first(name: str) -> str:
    return name if len(name) <= TITLE_LENGTH else f"{name[: TITLE_LENGTH - 3]}..."


def _shared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the rows in both, in order; by a mask, since sorting millions of rows takes seconds."""
    if not len(one) or not len(other):
        return np.zeros(0, dtype=np.int64)
    mask = np.zeros(max(one.max(), other.max()) + 1, dtype=bool)
    mask[one] = True
    return np.unique(other[mask[other]])


def rows_of(groups: Sequence[Part]) -> np.ndarray:
    """Concatenate the rows of several domains."""
    return np.concatenate([group.rows for group in groups]) if groups else np.zeros(0, dtype=np.int64)


class NoKnownClass(BadInput):
    """No test row of a domain has a class that an episode trains on."""


def score_known_classes(
    y: np.ndarray, classes: Sequence[str], episode: Episode
) -> tuple[Episode, dict[str, dict[str, int]]]:
    """Leave test rows out whose class is in no training row, since no model can predict it.

    Returns the episode, and per domain the number of omitted test rows per class. A domain without a test row that is
    left is not scored if more than `FEW_DOMAINS` are; with fewer domains this is an error.
    """
    known = np.unique(y[np.concatenate([rows_of(stage.train) for stage in episode.stages])])
    omitted: dict[str, dict[str, int]] = {}
    stages = []
    for stage in episode.stages:
        many = len(stage.test) > FEW_DOMAINS
        for part in stage.test:
            codes = y[part.rows]
            new, counts = np.unique(codes[~np.isin(codes, known)], return_counts=True)
            if len(new):
                omitted[part.domain] = {classes[int(i)]: int(n) for i, n in zip(new, counts, strict=True)}
            if len(codes) and counts.sum() == len(codes) and not many:
                names = ", ".join(omitted[part.domain])
                where = f"no class of domain '{part.domain}' ({names}) occurs in its training domains ({episode.name})"
                raise NoKnownClass(f"{where}: write equal classes alike, or remove the domain")
        test = (Part(part.domain, part.rows[np.isin(y[part.rows], known)]) for part in stage.test)
        stages.append(replace(stage, test=tuple(part for part in test if len(part) or not many)))
    return (replace(episode, stages=tuple(stages)), omitted) if omitted else (episode, omitted)


def require_domains(domains: RowsByDomain, least: int, plan: str) -> None:
    """Raise if the data has fewer domains than the plan needs."""
    if len(domains) < least:
        hint = next((rows.more_domains_hint for rows in domains.values()), "add more domains")
        have = f"the data has {len(domains)} ({', '.join(domains)})"
        raise BadInput(f"the protocol {plan} needs at least {least} domains, {have}: {hint} or use --plan in-domain")


def check_domain_names(names: Sequence[str], domains: RowsByDomain) -> None:
    """Raise if a setting names a domain that is not in the data, or one domain twice."""
    missing = [name for name in names if name not in domains]
    if missing:
        raise BadInput(f"no domain '{missing[0]}' in the data; its domains: {', '.join(domains)}")
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise BadInput(f"a setting of the plan names domain '{twice[0]}' twice: name it once")


def small_domains(scored: Sequence[Part], domains: int) -> list[str]:
    """Return the domains that are scored together: at least two with fewer than `MIN_ROWS` rows.

    `domains` is the number of domains of the episode; with at most `FEW_DOMAINS` each one is scored on its own.
    """
    small = [part.domain for part in scored if len(part) < MIN_ROWS]
    return small if domains > FEW_DOMAINS and len(small) > 1 else []


def pool_small(scored: Sequence[Part], domains: int, *, label: str = "") -> tuple[Part, ...]:
    """Return the domains with all small domains joined to one, which comes last and is named after their number.

    A label, such as that of an episode, distinguishes the pools of several episodes.
    """
    small = set(small_domains(scored, domains))
    if not small:
        return tuple(scored)
    name = f"{len(small)} domains with fewer than {MIN_ROWS} rows" + (f", {label}" if label else "")
    pooled = Part(name, rows_of([part for part in scored if part.domain in small]))
    return (*(part for part in scored if part.domain not in small), pooled)


def pool_tests(episode: Episode) -> Episode:
    """Let the small test domains of an episode be scored together; every domain of a stream is scored on its own."""
    stage, *others = episode.stages
    if others:
        return episode
    domains = len({part.domain for part in (*stage.train, *stage.valid, *stage.test)})
    return replace(episode, stages=(replace(stage, test=pool_small(stage.test, domains, label=episode.label)),))


def small_domain_note(sizes: dict[str, int]) -> str:
    """Return a note on the domains with fewer than `MIN_ROWS` rows, or an empty string."""
    small = {name: count for name, count in sizes.items() if count < MIN_ROWS}
    if not small:
        return ""
    if len(sizes) > FEW_DOMAINS and len(small) > 1:
        return f"{len(small):,} of {len(sizes):,} domains have fewer than {MIN_ROWS} rows and are scored together"
    listed = ", ".join(f"'{name}' has {count} row{'s' * (count > 1)}" for name, count in small.items())
    return f"scores of small domains are uncertain: {listed}"
