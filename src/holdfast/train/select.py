"""Model selection: which validated step of a training is deployed. Higher scores are better."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.data.splits import Part
from holdfast.defaults import FEW_DOMAINS
from holdfast.train.plans import balanced_groups

SOURCE_FOLDS = 5  # of the training domains, where a selection holds out many of them


@dataclass(frozen=True, slots=True)
class Validation:
    """Scores of one validation, per domain."""

    step: int
    scores: dict[str, float]


Choose = Callable[[Sequence[Validation]], int]  # index of the validation to deploy


def best_mean(history: Sequence[Validation]) -> int:
    """Return the first validation with the highest mean over domains."""
    means = [sum(validation.scores.values()) / len(validation.scores) for validation in history]
    return means.index(max(means))


def newest(history: Sequence[Validation]) -> int:
    """Return the newest validation."""
    return len(history) - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection method: the rows it is scored on and how it chooses."""

    choose: Choose
    scored_on: str = "valid"  # valid, current (only domains trained in the stage), oracle (the target) or folds


train_validation = Selection(best_mean)
current_domain = Selection(best_mean, "current")
oracle = Selection(best_mean, "oracle")
leave_one_domain_out = Selection(best_mean, "folds")
last = Selection(newest)


def should_stop(history: Sequence[Validation], choose: Choose, patience: int) -> bool:
    """Whether the chosen validation is `patience` validations old (early stopping); never for patience 0."""
    return patience > 0 and len(history) - 1 - choose(history) >= patience


def across_folds(histories: Sequence[Sequence[Validation]]) -> list[Validation]:
    """Merge the validations of several folds at the steps that all of them reached."""
    shared = set.intersection(*({validation.step for validation in history} for history in histories))
    merged: dict[int, dict[str, float]] = {step: {} for step in sorted(shared)}
    for history in histories:
        for validation in history:
            if validation.step in shared:
                merged[validation.step].update(validation.scores)
    return [Validation(step, scores) for step, scores in merged.items()]


def source_folds(domains: Sequence[Part]) -> list[list[str]]:
    """Return the domains that each fold of a selection holds out: one, or a group if there are many."""
    if len(domains) <= FEW_DOMAINS:
        return [[part.domain] for part in domains]
    return balanced_groups({part.domain: np.asarray([len(part)]) for part in domains}, SOURCE_FOLDS)
