"""The training loop: every phase ends at its selected step, and the next one continues from it."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.core.batch import DomainBatch
from holdfast.methods.base import Method
from holdfast.nn.model import Model
from holdfast.train.fit import EARLIER_KEYS, Validation, across_folds, best_mean, fit, newest, should_stop
from holdfast.train.resume import Saver
from tests.interrupted import Killed, killer


class Counting(Method):
    """Count steps in a buffer and note the count at the start of each phase; the second phase freezes the neck."""

    saved_attributes = ("noted",)
    phases = ("first", "second")

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.model = Model(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Dropout()), nn.Linear(2, 2))
        self.noted: list[float] = []
        self.register_buffer("steps", torch.tensor(0.0))

    def begin_phase(self, name: str) -> None:
        self.noted = [*self.noted, float(self.steps)]
        self.model.neck.requires_grad_(name == "first")

    def step(self, batch: DomainBatch):
        assert self.model.backbone.training
        assert self.model.neck.training == (len(self.noted) == 1)  # frozen modules are in evaluation mode
        self.steps += 1
        return {"risk": torch.tensor(0.0)}


class EndlessBatches:
    """Endless batches without state."""

    drawn = torch.zeros(0, dtype=torch.long)

    def __next__(self) -> None:
        return None

    def examples_per_domain(self, count: int) -> list[DomainBatch]:
        return []

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        assert state == {}


def scripted(*scores: float):
    """Return a validation function with the given scores."""
    remaining = iter(scores)
    return lambda: ({"a": next(remaining)}, {"a": 0.5})


# scores of both phases; steps at the start of the second phase and at the end; selected step of the second phase
CASES = [
    ((0.9, 0.1, 0.2, 0.3, 0.8, 0.1), best_mean, 2.0, 6.0, 4),
    ((0.1, 0.2, 0.9, 0.9, 0.1, 0.2), best_mean, 6.0, 8.0, 2),
    ((0.1, 0.9, 0.2, 0.1, 0.2, 0.3), best_mean, 4.0, 10.0, 6),
    ((0.9, 0.1, 0.2, 0.8, 0.1, 0.2), newest, 6.0, 12.0, 6),
]


@pytest.mark.parametrize(("scores", "choose", "start", "end", "selected"), CASES)
def test_each_phase_ends_at_its_selected_step(scores, choose, start, end, selected):
    method = Counting()
    result = fit(method, EndlessBatches(), scripted(*scores), steps=6, every=2, choose=choose)
    assert method.noted == [0.0, start]
    assert float(method.steps) == end
    assert result.step == selected
    assert [(h["phase"], h["step"]) for h in result.history] == list(itertools.product(Counting.phases, (2, 4, 6)))
    assert [v.step for v in result.validations] == [2, 4, 6]  # of the last phase


class Ending(Counting):
    """Keep the last step of the first phase, which ends at step 6; measure every phase."""

    keeps_last = ("first",)

    def on_valid(self, step, scores, losses) -> None:
        self.phase_ended = len(self.noted) == 1 and step == 6

    def end_phase(self, name, batches) -> dict[str, float]:
        assert list(batches) == []
        return {"steps": float(self.steps)}


def test_a_phase_may_keep_its_last_step_end_early_and_add_metrics():
    method = Ending()
    result = fit(method, EndlessBatches(), scripted(*[0.9, 0.1, 0.2] * 3), steps=8, every=2, choose=best_mean)
    assert method.noted == [0.0, 4.0]  # the first phase continues from the validation before it ended
    phases = [(h["phase"], h["step"], h.get("ended", False), h.get("steps")) for h in result.history]
    assert phases[:3] == [("first", 2, False, None), ("first", 4, False, None), ("first", 6, True, 4.0)]
    assert phases[3:] == [*(("second", step, False, None) for step in (2, 4, 6)), ("second", 8, False, 6.0)]
    assert result.step == 2


def test_patience_is_counted_per_phase():
    method = Counting()
    scores = (0.9, 0.1, 0.2, 0.3, 0.5, 0.4, 0.4)  # the second phase is worse than the first
    result = fit(method, EndlessBatches(), scripted(*scores), steps=20, every=2, choose=best_mean, patience=2)
    assert [(h["phase"], h["step"]) for h in result.history] == [
        *(("first", step) for step in (2, 4, 6)),
        *(("second", step) for step in (2, 4, 6, 8)),
    ]
    assert (method.noted, float(method.steps)) == ([0.0, 2.0], 6.0)


@pytest.mark.parametrize("at", range(1, 13))
def test_resume_after_any_step(at, tmp_path):
    """A run that is killed after any step and resumed ends with the same state."""
    scores = np.random.default_rng(0).random(6).tolist()
    saver = Saver(tmp_path / "run", seconds=0.0)

    def go(method, **more):
        validate = scripted(*scores[more.pop("used", 0) :])
        return fit(method, EndlessBatches(), validate, steps=6, every=2, choose=best_mean, **more)

    straight = Counting()
    expected = go(straight)
    if at < 12:
        with pytest.raises(Killed):
            go(Counting(), saver=saver, tick=killer(at + 1))
    else:
        go(Counting(), saver=saver)
    saved = Saver(tmp_path / "run").load()
    earlier = {new: old for old, new in EARLIER_KEYS.items()}
    assert len(earlier.keys() & saved["fit"].keys()) == 5
    for state in (saved["fit"], {earlier.get(key, key): value for key, value in saved["fit"].items()}):
        again = Counting()
        result = go(again, saved=copy.deepcopy(state), used=at // 2)
        assert (float(again.steps), again.noted) == (float(straight.steps), straight.noted)
        assert result == expected


def validations(*values):
    return [Validation(i + 1, {"a": v, "b": 0.0}) for i, v in enumerate(values)]


def test_best_mean_returns_the_first_of_equals():
    assert best_mean(validations(0.1, 0.5, 0.5, 0.2)) == 1
    assert best_mean([Validation(1, {"a": 0.9, "b": 0.1}), Validation(2, {"a": 0.6, "b": 0.6})]) == 1


def test_newest_is_the_last_validation():
    assert newest(validations(0.9, 0.1)) == 1


def test_patience_counts_validations_since_the_selected_one():
    assert not should_stop(validations(0.5, 0.4), best_mean, 2)
    assert should_stop(validations(0.5, 0.4, 0.5), best_mean, 2)
    assert not should_stop(validations(0.5, 0.4, 0.3), best_mean, 0)


def test_folds_are_merged_at_their_common_steps():
    one = [Validation(5, {"a": 0.2}), Validation(10, {"a": 0.9})]
    two = [Validation(5, {"b": 0.8}), Validation(10, {"b": 0.3}), Validation(15, {"b": 1.0})]
    merged = across_folds([one, two])
    assert [(c.step, c.scores) for c in merged] == [(5, {"a": 0.2, "b": 0.8}), (10, {"a": 0.9, "b": 0.3})]
    assert merged[best_mean(merged)].step == 10
