"""Which validated step is kept: pure functions over validation scores, higher is better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation: the step and a score for each validation domain."""

    step: int
    scores: dict[str, float]


Choose = Callable[[Sequence[Validation]], int]  # the index of the check to keep


def best_mean(history: Sequence[Validation]) -> int:
    """The first check with the highest mean over its domains."""
    means = [sum(check.scores.values()) / len(check.scores) for check in history]
    return means.index(max(means))


def newest(history: Sequence[Validation]) -> int:
    """The newest check, whatever it scored."""
    return len(history) - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """A rule to choose by: which scores it looks at, and how it chooses among them."""

    choose: Choose
    scored_on: str = "valid"  # valid: source validation; trained: the stage's own domains; peek: the target; folds


train_validation = Selection(best_mean)
current_domain = Selection(best_mean, "current")
oracle = Selection(best_mean, "oracle")
leave_one_domain_out = Selection(best_mean, "folds")
last = Selection(newest)


def should_stop(history: Sequence[Validation], choose: Choose, patience: int) -> bool:
    """Early stopping: the kept check lies `patience` checks back (never for patience 0)."""
    return patience > 0 and len(history) - 1 - choose(history) >= patience


def across_folds(histories: Sequence[Sequence[Validation]]) -> list[Validation]:
    """Checks of several folds at the steps they all reached, with every fold's held-out score."""
    shared = set.intersection(*({check.step for check in history} for history in histories))
    merged: dict[int, dict[str, float]] = {step: {} for step in sorted(shared)}
    for history in histories:
        for check in history:
            if check.step in shared:
                merged[check.step].update(check.scores)
    return [Validation(step, scores) for step, scores in merged.items()]
