"""Search spaces, and samplers that draw from them: independent random draws, or optuna's TPE."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from holdfast import catalog
from holdfast.catalog.rates import rate_parts
from holdfast.core.errors import BadInput, check_known
from holdfast.core.seeds import derive
from holdfast.core.settings import choice, log
from holdfast.spec import Spec

Space = dict[str, Mapping[str, Any]]  # setting as for --set -> log, even, choice or whole
SAMPLERS = ("random", "optuna")
RATES = choice(1.0, 3.0, 10.0, 30.0)  # factors of the learning rate of a part
LR_FACTOR = 10.0  # the learning rate is searched up to this factor below and above its default


def space_of(spec: Spec, fixed: Collection[str] = ()) -> Space:
    """Return the search space of a method, its wrappers, its neck and the optimizer, without `fixed` settings.

    Parts have their own learning rates; with an encoder that is not trained, `lr` is that of the head.
    """
    space: Space = {
        "lr": log(spec.lr / LR_FACTOR, spec.lr * LR_FACTOR),
        "weight_decay": log(1e-6, 1e-2),
        "batch": choice(16, 32, 64),
    }
    for section, name in (("methods", spec.method), ("necks", spec.neck)):
        for _, entry in reversed(catalog.unwrap(section, name)):
            space |= {f"{section.removesuffix('s')}.{key}": values for key, values in entry.search_space().items()}
    trained = spec.tune != "frozen" and spec.encoder != "features"
    space |= {f"lr.{part}": RATES for part in rate_parts(spec) if trained or part != "head"}
    return {key: values for key, values in space.items() if key not in fixed}


def draw(space: Space, trial: int) -> dict[str, Any]:
    """Draw the settings of a trial, each with its own seed, so that all methods share common settings."""
    return {key: _draw(values, np.random.default_rng(derive(0, "sweep", trial, key))) for key, values in space.items()}


def _draw(values: Mapping[str, Any], rng: np.random.Generator) -> Any:
    ((kind, bounds),) = values.items()
    match kind:
        case "log":
            return _rounded(math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1]))))
        case "even":
            return _rounded(rng.uniform(*bounds))
        case "whole":
            return min(int(math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1] + 1)))), bounds[1])
        case "choice":
            return bounds[int(rng.integers(len(bounds)))]
    raise AssertionError(kind)


def _rounded(value: float) -> float:
    """Round to four digits, which keeps labels readable."""
    return float(f"{value:.4g}")


class Random:
    """Independent draws. A sampler proposes the settings of trials 1, 2, ... of a method; trial 0 has the defaults."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def ask(self, trial: int) -> dict[str, Any]:
        return draw(self.space, trial)

    def tell(self, trial: int, score: float | None) -> None:
        """Report the score of a trial, higher is better, or None if it failed; independent draws ignore it."""


class Tpe:
    """Optuna's tree-structured Parzen estimator with a fixed seed: equal scores lead to equal proposals."""

    def __init__(self, space: Space) -> None:
        try:
            import optuna  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise BadInput("--sampler optuna needs the package optuna: run `pip install optuna`") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.open_trials = space, {}
        self.failed = optuna.trial.TrialState.FAIL
        sampler = optuna.samplers.TPESampler(seed=derive(0, "sweep", *sorted(space)) % 2**32)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self, trial: int) -> dict[str, Any]:
        self.open_trials[trial] = proposal = self.study.ask()
        return {key: self._suggest(proposal, key, values) for key, values in self.space.items()}

    def tell(self, trial: int, score: float | None) -> None:
        if trial in self.open_trials:
            state = self.failed if score is None else None
            self.study.tell(self.open_trials.pop(trial), score, state=state)

    def _suggest(self, trial: Any, key: str, values: Mapping[str, Any]) -> Any:
        ((kind, bounds),) = values.items()
        if kind == "choice":  # by index: a choice may be a list, which optuna does not take
            return bounds[trial.suggest_categorical(key, list(range(len(bounds))))]
        if kind == "whole":
            return trial.suggest_int(key, bounds[0], bounds[1], log=True)
        return _rounded(trial.suggest_float(key, bounds[0], bounds[1], log=kind == "log"))


def make_sampler(name: str, space: Space) -> Random | Tpe:
    """Return the sampler of this name over a space."""
    check_known("sampler", name, SAMPLERS)
    return Tpe(space) if name == "optuna" else Random(space)
