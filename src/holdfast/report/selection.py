"""Choosing among trials of a hyper-parameter search by validation scores alone: three rules over records.

The rules are those of DomainBed (Gulrajani & Lopez-Paz, 2021): for each method, target and seed the trial with the best
validation score is taken, and only then is its test score looked at. Where ours differ, and why:

- The step inside a run is the one the run itself kept. DomainBed tests at every checkpoint and chooses afterwards; our
  runs open test rows once. For train-validation both are the same step. The oracle of DomainBed takes the last step,
  ours the best by the target's rows it may see, so that it bounds every rule from above. Leave-one-domain-out chooses
  step and trial together in DomainBed; here it chooses the trial, and every run its own step by train-validation.
- DomainBed always tests on 80 % of the target and keeps 20 % for the oracle. We do so for the oracle; for the other
  rules nothing of the target is set aside, and all of it is tested (its test rows, where the data marks some).
- The trials are the same for every seed here; DomainBed draws others for each. So one configuration can be named at the
  end. The choice is still made for each seed by itself, so errors over seeds hold what choosing adds.
- Our standard error divides by n - 1, DomainBed's by n.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.record import LOWER_IS_BETTER, RunRecord

NOT_OF_A_TRIAL = ("seed", "plan", "plan_args", "select")  # where and how often a trial is run

Rule = Callable[[RunRecord, Sequence[RunRecord]], float | None]  # higher is better; None: the trial cannot be judged


@dataclass(frozen=True, slots=True)
class Choice:
    """What a rule took for one method, episode and seed."""

    method: str
    episode: str
    seed: Any
    trial: str
    score: float  # validation, higher is better
    run: RunRecord


def trial(spec: Mapping[str, Any]) -> str:
    """What makes a trial: all of a spec but the seed, the plan and the rule."""
    return json.dumps({k: v for k, v in spec.items() if k not in NOT_OF_A_TRIAL}, sort_keys=True)


def train_validation(run: RunRecord, folds: Sequence[RunRecord] = ()) -> float | None:
    """Mean over validation domains of the score at the kept step; in a stream, mean over stages of that.

    After a stage of a stream only its own domain is validated, so what is forgotten does not count.
    """
    means = [_mean(_score(s, run) for s in stage["valid"].values()) for stage in run.stages]
    return _mean(means)


def oracle(run: RunRecord, folds: Sequence[RunRecord] = ()) -> float | None:
    """Mean score at the kept step on the target's rows that the run was shown: an upper bound, not a method."""
    if run.spec.get("select") != "oracle":
        raise BadInput(
            f"{run.episode} of {run.spec['method']} was run with selection '{run.spec.get('select')}', so it has no "
            "scores on the target to choose by: run it with --select oracle"
        )
    means = []
    for stage in run.stages:
        at = [check for check in stage["history"] if check["step"] == stage["step"]]
        means.append(_mean(at[-1]["valid"].values()) if at else None)  # the last phase is the one that counts
    return _mean(means)


def leave_one_domain_out(run: RunRecord, folds: Sequence[RunRecord]) -> float | None:
    """Mean over training domains v of the score on v of the same trial and seed trained without v and the target.

    `folds` are runs that leave out two domains (or more) and are scored on them: one serves both of its targets.
    """
    (stage,) = run.stages
    sources = set(stage["train"])
    found = []
    for held in stage["train"]:
        for fold in folds:
            (other,) = fold.stages
            same = fold.spec.get("seed") == run.spec.get("seed") and trial(fold.spec) == trial(run.spec)
            if same and set(other["train"]) == sources - {held} and held in other["test"]:
                found.append(_score(other["test"][held], run))
                break
        else:
            return None
    return _mean(found)


CRITERIA: dict[str, Rule] = {
    "train-validation": train_validation,
    "current-domain": train_validation,  # a run of that selection validates its own domains
    "last": train_validation,  # at the last step
    "oracle": oracle,
    "leave-one-domain-out": leave_one_domain_out,
}


def choose(runs: Iterable[RunRecord], rule: Rule, folds: Sequence[RunRecord] = ()) -> list[Choice]:
    """For each method, episode and seed the trial that scores best; of equal ones the first."""
    found: dict[tuple[str, str, Any], Choice] = {}
    for run, score in _judged(runs, rule, folds):
        place = (str(run.spec["method"]), run.episode, run.spec.get("seed"))
        if place not in found or score > found[place].score:
            found[place] = Choice(*place, trial(run.spec), score, run)
    return list(found.values())


def overall(runs: Sequence[RunRecord], rule: Rule, folds: Sequence[RunRecord] = ()) -> dict[str, tuple[str, float]]:
    """Method -> the trial with the best mean score over all its episodes and seeds, and that mean; ties to the first.

    A trial that lacks an episode or a seed that another has cannot be compared and is left out.
    """
    scores: dict[str, dict[str, dict[tuple[str, Any], float]]] = {}
    for run, score in _judged(runs, rule, folds):
        places = scores.setdefault(str(run.spec["method"]), {}).setdefault(trial(run.spec), {})
        places[run.episode, run.spec.get("seed")] = score
    found = {}
    for method, trials in scores.items():
        most = max(len(places) for places in trials.values())
        means = {key: math.fsum(places.values()) / most for key, places in trials.items() if len(places) == most}
        best = max(means, key=lambda key: means[key])
        found[method] = best, means[best]
    return found


def _judged(runs: Iterable[RunRecord], rule: Rule, folds: Sequence[RunRecord]) -> Iterator[tuple[RunRecord, float]]:
    """The runs that have a score; each is handed only the folds of its own trial and seed."""
    own: dict[tuple[str, Any], list[RunRecord]] = {}
    for fold in folds:
        own.setdefault((trial(fold.spec), fold.spec.get("seed")), []).append(fold)
    for run in runs:
        score = rule(run, own.get((trial(run.spec), run.spec.get("seed")), []))
        if score is not None and math.isfinite(score):
            yield run, score


def _score(scores: Mapping[str, float | None], run: RunRecord) -> float | None:
    """The score by the metric the run selects by, higher is better."""
    metric = run.spec["metric"]
    value = scores.get(metric)
    return value if value is None else -value if metric in LOWER_IS_BETTER else value


def _mean(values: Iterable[float | None]) -> float | None:
    """A metric that is not defined somewhere is so for every trial, and is left out; None where nothing is left."""
    given = [v for v in values if v is not None]
    return math.fsum(given) / len(given) if given else None
