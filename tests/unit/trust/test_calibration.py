import numpy as np
import pytest
from scipy.special import softmax

from holdfast.models.calibration import fit_temperature, nll, probabilities


def drawn(n, seed, *, sharper):
    """Outputs `sharper` times as sure as they should be, and labels drawn by the true probabilities."""
    chance = np.random.default_rng(seed)
    true = chance.normal(0, 1.5, (n, 3))
    y = np.asarray([chance.choice(3, p=p) for p in softmax(true, axis=1)])
    return sharper * true, y


@pytest.mark.parametrize("sharper", [0.3, 1.0, 4.0])
def test_it_finds_the_temperature_and_helps_on_other_examples(sharper):
    outputs, y = drawn(3000, 0, sharper=sharper)
    temperature = fit_temperature(outputs, y)
    assert temperature == pytest.approx(sharper, rel=0.1)
    others, truth = drawn(3000, 1, sharper=sharper)
    assert nll(others, truth, temperature) <= nll(others, truth) + 1e-3
    if sharper != 1.0:
        assert nll(others, truth, temperature) < nll(others, truth) - 0.02


@pytest.mark.parametrize("seed", range(20))
def test_it_never_makes_the_examples_worse_that_it_saw(seed):
    outputs, y = drawn(8, seed, sharper=1.0)
    assert nll(outputs, y, fit_temperature(outputs, y)) <= nll(outputs, y)


def test_a_few_examples_that_are_all_right_do_not_make_it_certain():
    outputs, y = np.eye(2)[[0, 1, 0, 1, 0]] * 2.0, np.asarray([0, 1, 0, 1, 0])
    temperature = fit_temperature(outputs, y)
    assert 0.3 < temperature < 1.0
    assert probabilities(outputs, temperature).max() < 0.999


def test_without_labels_nothing_is_changed():
    assert fit_temperature(np.zeros((0, 2)), np.zeros(0, dtype=np.int64)) == 1.0
    assert fit_temperature(np.ones((3, 2)), np.full(3, -1)) == 1.0


def test_the_choice_of_a_label_does_not_depend_on_the_temperature():
    outputs, _ = drawn(50, 2, sharper=1.0)
    for temperature in (0.2, 1.0, 7.0):
        p = probabilities(outputs, temperature)
        np.testing.assert_array_equal(p.argmax(1), outputs.argmax(1))
        np.testing.assert_allclose(p.sum(1), 1.0)
