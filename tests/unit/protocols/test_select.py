"""Selection of a step from validation scores."""

from holdfast.protocols.select import Validation, across_folds, best_mean, newest, should_stop


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
