"""Model selection in a hyperparameter search, by validation scores alone.

The criteria are those of DomainBed (Gulrajani & Lopez-Paz, 2021): per method, target and seed, the trial with the best
validation score is selected, and only then its test score is read. Differences from DomainBed:

- The step within a run is the selected checkpoint of that run; test rows are scored once. For train-validation this
  is the same step as in DomainBed. DomainBed's oracle takes the last step; here it takes the best step on the target
  rows that it may see, so that it is an upper bound of all criteria. DomainBed's leave-one-domain-out selects step and
  trial together; here it selects the trial, and each run selects its step by train-validation.
- DomainBed always tests on 80 % of the target and reserves 20 % for the oracle. Here this holds for the oracle only;
  the other criteria test on the complete target (its test rows, if the data marks them).
- All seeds share the same trials; DomainBed samples trials per seed. So one configuration can be reported at the end.
  Each seed still selects its own trial, so standard errors over seeds include the effect of selection.
- The standard deviation divides by n - 1, DomainBed's by n.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.stats.labels import settings_key
from holdfast.stats.statistics import mean

NOT_IN_TRIAL = ("seed", "plan", "plan_args", "select")  # settings that do not define a trial

Criterion = Callable[[RunRecord, Sequence[RunRecord]], float | None]  # higher is better; None if undefined


@dataclass(frozen=True, slots=True)
class Choice:
    """The trial that a criterion selected for one method, episode and seed."""

    method: str
    episode: str
    seed: Any
    trial: str
    score: float  # validation, higher is better
    run: RunRecord


def trial(spec: Mapping[str, Any]) -> str:
    """Identify a trial: the spec without seed, plan and selection."""
    return settings_key(spec, *NOT_IN_TRIAL)


def train_validation(run: RunRecord, folds: Sequence[RunRecord] = ()) -> float | None:
    """Mean score over validation domains at the selected step; for streams, the mean of this over stages.

    A stage of a stream validates its own domain only, so forgetting does not count.
    """
    return mean(mean(_score(s, run) for s in stage["valid"].values()) for stage in run.stages)


def oracle(run: RunRecord, folds: Sequence[RunRecord] = ()) -> float | None:
    """Mean score at the selected step on the target rows reserved for selection: an upper bound."""
    if run.spec.get("select") != "oracle":
        raise BadInput(
            f"{run.episode} of {run.spec['method']} was run with --select {run.spec.get('select')} and has no "
            "validation scores on the target: run it with --select oracle"
        )
    means = []
    for stage in run.stages:
        checks = [check for check in stage["history"] if check["step"] == stage["step"]]
        means.append(mean(checks[-1]["valid"].values()) if checks else None)  # of the last phase
    return mean(means)


def leave_one_domain_out(run: RunRecord, folds: Sequence[RunRecord]) -> float | None:
    """Mean over training domains v of the score on v of the same trial and seed, trained without v and the target.

    `folds` are runs that hold out two or more domains, or groups of them, and are scored on them; one fold serves both
    of its targets. It is None unless the folds leave out every training domain once.
    """
    (stage,) = run.stages
    sources = set(stage["train"])
    scores: dict[frozenset[str], list[float | None]] = {}  # by the domains that a fold leaves out
    for fold in folds:
        (other,) = fold.stages
        left_out = frozenset(sources - set(other["train"]))
        same = fold.spec.get("seed") == run.spec.get("seed") and trial(fold.spec) == trial(run.spec)
        if not same or not left_out or not set(other["train"]) < sources or left_out in scores:
            continue
        # of domains that are scored together no name is known, but all of them are sources
        own = set(fold.spec.get("plan_args", {}).get("targets", ())) <= sources
        tested = [values for name, values in other["test"].items() if own or name in left_out]
        if tested:
            scores[left_out] = [_score(values, run) for values in tested]
    if sum(map(len, scores)) != len(sources) or frozenset().union(*scores) != sources:
        return None
    return mean(value for values in scores.values() for value in values)


CRITERIA: dict[str, Criterion] = {
    "train-validation": train_validation,
    "current-domain": train_validation,  # these runs validate on the current domain
    "last": train_validation,  # at the last step
    "oracle": oracle,
    "leave-one-domain-out": leave_one_domain_out,
}


def choose(runs: Iterable[RunRecord], criterion: Criterion, folds: Sequence[RunRecord] = ()) -> list[Choice]:
    """Select the best trial per method, episode and seed; the first one wins ties."""
    choices: dict[tuple[str, str, Any], Choice] = {}
    for run, score in _scored(runs, criterion, folds):
        key = (str(run.spec["method"]), run.episode, run.spec.get("seed"))
        if key not in choices or score > choices[key].score:
            choices[key] = Choice(*key, trial(run.spec), score, run)
    return list(choices.values())


def overall(
    runs: Sequence[RunRecord], criterion: Criterion, folds: Sequence[RunRecord] = ()
) -> dict[str, tuple[str, float]]:
    """Map method to the trial with the best mean score over all episodes and seeds, and that mean.

    Trials that lack an episode or a seed of another trial are not comparable and are left out.
    """
    scores: dict[str, dict[str, dict[tuple[str, Any], float]]] = {}
    for run, score in _scored(runs, criterion, folds):
        by_run = scores.setdefault(str(run.spec["method"]), {}).setdefault(trial(run.spec), {})
        by_run[run.episode, run.spec.get("seed")] = score
    best = {}
    for method, trials in scores.items():
        most = max(map(len, trials.values()))
        means = [(key, math.fsum(by_run.values()) / most) for key, by_run in trials.items() if len(by_run) == most]
        best[method] = max(means, key=lambda pair: pair[1])
    return best


def _scored(
    runs: Iterable[RunRecord], criterion: Criterion, folds: Sequence[RunRecord]
) -> Iterator[tuple[RunRecord, float]]:
    """Yield the runs that have a score; each is passed the folds of its own trial and seed."""
    by_trial: dict[tuple[str, Any], list[RunRecord]] = {}
    for fold in folds:
        by_trial.setdefault((trial(fold.spec), fold.spec.get("seed")), []).append(fold)
    for run in runs:
        score = criterion(run, by_trial.get((trial(run.spec), run.spec.get("seed")), []))
        if score is not None and math.isfinite(score):
            yield run, score


def _score(scores: Mapping[str, float | None], run: RunRecord) -> float | None:
    """Return the score by the selection metric of the run, signed so that higher is better."""
    value = scores.get(run.spec["metric"])
    return value if value is None else -value if run.spec["metric"] in LOWER_IS_BETTER else value
