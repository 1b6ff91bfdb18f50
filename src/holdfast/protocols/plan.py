"""What a run may see, and when: parts of domains in stages. A plan is a generator of episodes and trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.splits import Part, RowsByDomain


@dataclass(frozen=True, eq=False)
class Stage:
    """Train on some parts, choose by others, be scored on the rest; `oracle` is target data for the oracle alone."""

    train: tuple[Part, ...]
    valid: tuple[Part, ...]
    test: tuple[Part, ...]
    oracle: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        train, valid, test, peek = map(rows_of, (self.train, self.valid, self.test, self.oracle))
        for name, a, b in (
            ("training and validation", train, valid),
            ("training and test", train, test),
            ("validation and test", valid, test),
            ("training and oracle", train, peek),
            ("oracle and test", peek, test),
        ):
            shared = np.intersect1d(a, b)
            if len(shared):
                raise ValueError(f"{len(shared)} rows are in both {name}, such as row {shared[0]}")


@dataclass(frozen=True, eq=False)
class Episode:
    """One training from start to end; over a stream it has one stage a domain."""

    name: str
    stages: tuple[Stage, ...]


@dataclass(frozen=True, eq=False)
class PastStages:
    """What a network learned before a run: how many stages, and what is there of their training rows."""

    count: int
    data: tuple[Part, ...] = ()


class Plan(Protocol):
    """Constructor keywords are its settings; `oracle` asks for target rows in `Stage.oracle`."""

    def episodes(self, shares: RowsByDomain, seed: int, *, oracle: bool = False) -> Iterator[Episode]: ...


def rows_of(parts: Sequence[Part]) -> np.ndarray:
    """All rows of some parts."""
    return np.concatenate([p.rows for p in parts]) if parts else np.zeros(0, dtype=np.int64)


def require_domains(shares: RowsByDomain, least: int, plan: str) -> None:
    """One sentence when the data has fewer domains than the plan needs."""
    if len(shares) < least:
        mend = next((each.more_domains_hint for each in shares.values()), "bring more domains")
        raise BadInput(
            f"the protocol {plan} needs at least {least} domains, the data has {len(shares)} "
            f"({', '.join(shares)}): {mend} or use --plan in-domain"
        )


def check_domain_names(names: Sequence[str], shares: RowsByDomain) -> None:
    """One sentence when a setting names a domain that is not in the data, or one twice."""
    missing = [name for name in names if name not in shares]
    if missing:
        raise BadInput(f"no domain '{missing[0]}' in the data; its domains: {', '.join(shares)}")
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise BadInput(f"domain '{twice[0]}' is named twice in a setting of the plan: name each once")
