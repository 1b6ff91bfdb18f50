"""Multi-label and ordinal tasks: losses, metrics and thresholds, compared with scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, cohen_kappa_score, f1_score, log_loss

from holdfast.core.errors import BadInput
from holdfast.tasks.multilabel import MultiLabel, average_precision, best_thresholds
from holdfast.tasks.ordinal import Ordinal, quadratic_kappa


@pytest.fixture
def sets():
    rng = np.random.default_rng(0)
    truth = (rng.random((300, 4)) < [0.5, 0.3, 0.1, 0.7]).astype(np.float32)
    logits = 2 * truth - 1.5 + rng.normal(size=truth.shape)
    return torch.from_numpy(logits).float(), torch.from_numpy(truth)


def test_multi_label_metrics_equal_those_of_scikit_learn(sets):
    logits, y = sets
    task = MultiLabel()
    scores = task.scores(logits, y, task.metrics)
    probability, truth = logits.double().sigmoid().numpy(), y.numpy()
    predicted = probability >= 0.5
    assert scores["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert scores["micro_f1"] == pytest.approx(f1_score(truth, predicted, average="micro"))
    assert scores["map"] == pytest.approx(average_precision_score(truth, probability, average="macro"))
    assert scores["exact_match"] == pytest.approx((predicted == truth).all(axis=1).mean())
    assert scores["nll"] == pytest.approx(float(task.loss(logits, y)), rel=1e-5)
    assert float(task.correct(logits, y).double().mean()) == pytest.approx(scores["exact_match"])


def test_average_precision_with_ties():
    score, positive = np.array([0.5, 0.5, 0.2, 0.9, 0.2]), np.array([True, False, True, True, False])
    assert average_precision(score, positive) == pytest.approx(average_precision_score(positive, score))


def test_thresholds_are_best_on_the_rows_they_are_chosen_on(sets):
    logits, y = sets
    probability, truth = logits.double().sigmoid().numpy(), y.numpy() > 0.5
    thresholds = best_thresholds(probability, truth)
    for label in range(4):
        chosen = f1_score(truth[:, label], probability[:, label] >= thresholds[label])
        others = [f1_score(truth[:, label], probability[:, label] >= t) for t in np.linspace(0.01, 0.99, 99)]
        assert chosen >= max(others) - 1e-12
    calibrated = MultiLabel().calibrated(logits, y)
    assert (
        calibrated.scores(logits, y, ["macro_f1"])["macro_f1"]
        > MultiLabel().scores(logits, y, ["macro_f1"])["macro_f1"]
    )
    assert best_thresholds(probability[:5], np.zeros((5, 4), dtype=bool)).tolist() == [0.5] * 4


def test_a_label_without_positives_does_not_count():
    scores = MultiLabel().scores(torch.tensor([[3.0, 3.0]]), torch.tensor([[1.0, 0.0]]), ["macro_f1", "map"])
    assert scores == {"macro_f1": 1.0, "map": 1.0}
    empty = MultiLabel().scores(torch.tensor([[-3.0]]), torch.tensor([[0.0]]), ["macro_f1", "micro_f1", "map"])
    assert empty == {"macro_f1": None, "micro_f1": None, "map": None}


def test_ordinal_loss_is_the_mean_of_binary_losses():
    rng = np.random.default_rng(0)
    output, y = torch.from_numpy(rng.normal(size=(50, 4))), torch.from_numpy(rng.integers(4, size=50))
    above = 1 - output.softmax(-1).cumsum(-1).numpy()[:, :3]
    losses = [log_loss(y.numpy() > k, above[:, k]) for k in range(3)]
    assert float(Ordinal().loss(output, y)) == pytest.approx(np.mean(losses))


def test_a_distant_level_costs_more_than_a_near_one():
    output = torch.tensor([[4.0, 0.0, 0.0]])
    assert Ordinal().loss(output, torch.tensor([2])) > Ordinal().loss(output, torch.tensor([1]))


def test_ordinal_metrics():
    rng = np.random.default_rng(1)
    stats, y = torch.from_numpy(rng.normal(size=(80, 4))), torch.from_numpy(rng.integers(4, size=80))
    scores = Ordinal().scores(stats, y, Ordinal.metrics)
    predicted = stats.argmax(-1).numpy()
    assert scores["kappa"] == pytest.approx(cohen_kappa_score(y, predicted, weights="quadratic", labels=range(4)))
    assert scores["mae"] == pytest.approx(np.abs(predicted - y.numpy()).mean())
    assert quadratic_kappa(np.zeros(3, dtype=int), np.zeros(3, dtype=int), 4) is None
    with pytest.raises(BadInput, match=r"task\.order"):
        Ordinal(order="low")
