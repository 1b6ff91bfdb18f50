"""Where a hyper-parameter search looks, and how it draws: by named seeds, or by optuna's tree-structured estimator."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np

from holdfast import catalog
from holdfast.core.errors import BadInput, unknown
from holdfast.core.seeds import derive
from holdfast.core.settings import choice, log
from holdfast.spec import Spec

Space = dict[str, Mapping[str, Any]]  # setting as --set takes it -> log, even, choice or whole
SAMPLERS = ("random", "optuna")
REACH = 10.0  # how far a learning rate is searched around its default, as a factor either way


def space_of(spec: Spec, fixed: Collection[str] = ()) -> Space:
    """What is searched for a method: its own settings and its wrappers', the neck's, and how it descends.

    `fixed` are the settings the user decided, which are not searched.
    """
    space: Space = {
        "lr": log(spec.lr / REACH, spec.lr * REACH),
        "weight_decay": log(1e-6, 1e-2),
        "batch": choice(16, 32, 64),
    }
    for section, name in (("methods", spec.method), ("necks", spec.neck)):
        for _, layer in reversed(catalog.unwrap(section, name)):
            space |= {f"{section.removesuffix('s')}.{key}": where for key, where in layer.search_space().items()}
    return {key: where for key, where in space.items() if key not in fixed}


def draw(space: Space, trial: int) -> dict[str, Any]:
    """The settings of one trial; each is drawn from a seed of its own, so all methods see the same common settings."""
    return {key: _value(where, np.random.default_rng(derive(0, "sweep", trial, key))) for key, where in space.items()}


def _value(where: Mapping[str, Any], chance: np.random.Generator) -> Any:
    ((kind, bounds),) = where.items()
    match kind:
        case "log":
            return _short(math.exp(chance.uniform(math.log(bounds[0]), math.log(bounds[1]))))
        case "even":
            return _short(chance.uniform(*bounds))
        case "whole":
            return min(int(math.exp(chance.uniform(math.log(bounds[0]), math.log(bounds[1] + 1)))), bounds[1])
        case "choice":
            return bounds[int(chance.integers(len(bounds)))]
    raise AssertionError(kind)


def _short(value: float) -> float:
    """Four digits say enough, and a label stays readable."""
    return float(f"{value:.4g}")


class Sampler(Protocol):
    """Gives the settings of trial 1, 2, ... of one method; trial 0 is the defaults and is not asked for."""

    def ask(self, trial: int) -> dict[str, Any]: ...

    def tell(self, trial: int, score: float | None) -> None:
        """How the trial was judged, higher is better; None where it failed."""
        ...


class Random:
    """Every trial by itself."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def ask(self, trial: int) -> dict[str, Any]:
        return draw(self.space, trial)

    def tell(self, trial: int, score: float | None) -> None:
        """A draw learns nothing."""


class Tpe:
    """Optuna's tree-structured Parzen estimator, seeded: the same scores give the same next trial."""

    def __init__(self, space: Space) -> None:
        try:
            import optuna  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise BadInput("the sampler optuna needs the package optuna: pip install optuna") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.asked = space, {}
        self.failed = optuna.trial.TrialState.FAIL
        sampler = optuna.samplers.TPESampler(seed=derive(0, "sweep", *sorted(space)) % 2**32)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self, trial: int) -> dict[str, Any]:
        self.asked[trial] = asked = self.study.ask()
        return {key: self._suggest(asked, key, where) for key, where in self.space.items()}

    def tell(self, trial: int, score: float | None) -> None:
        if trial in self.asked:
            state = self.failed if score is None else None
            self.study.tell(self.asked.pop(trial), score, state=state)

    def _suggest(self, trial: Any, key: str, where: Mapping[str, Any]) -> Any:
        ((kind, bounds),) = where.items()
        if kind == "choice":  # by place: a choice may be a list, which optuna does not take
            return bounds[trial.suggest_categorical(key, list(range(len(bounds))))]
        if kind == "whole":
            return trial.suggest_int(key, bounds[0], bounds[1], log=True)
        return _short(trial.suggest_float(key, bounds[0], bounds[1], log=kind == "log"))


def make_sampler(name: str, space: Space) -> Sampler:
    """The sampler of that name over a space."""
    if name not in SAMPLERS:
        raise unknown("sampler", name, SAMPLERS)
    return Tpe(space) if name == "optuna" else Random(space)
