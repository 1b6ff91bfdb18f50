"""Groups of domains that are held out together, and the plan that scores them, for data with many domains.

Shapes: n domains, s strata.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.splits import DomainRows, Part, RowsByDomain
from holdfast.defaults import FEW_DOMAINS
from holdfast.train.plan import Episode, check_domain_names, require_domains
from holdfast.train.plans import unseen_stage

SOURCE_FOLDS = 5  # of the training domains, where a selection holds out many of them


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


def source_folds(domains: Sequence[Part]) -> list[list[str]]:
    """Return the domains that each fold of a selection holds out: one, or a group if there are many."""
    if len(domains) <= FEW_DOMAINS:
        return [[part.domain] for part in domains]
    return balanced_groups({part.domain: np.asarray([len(part)]) for part in domains}, SOURCE_FOLDS)


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
