"""Regression: losses, metrics, standardised targets and calibrated intervals."""

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, r2_score, root_mean_squared_error

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.nn.model import OutputScale
from holdfast.tasks.regress import Regress, conformal_margin, interval


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    targets = 50 + 20 * rng.standard_normal(200)
    task = Regress().bound(targets)
    y = task.encode(np.zeros(200), targets)
    return targets, task, y, y[:, None] + 0.3 * torch.from_numpy(rng.standard_normal((200, 1))).float()


def test_targets_are_standardised_by_the_training_rows(problem):
    targets, task, y, _ = problem
    assert task.scale == pytest.approx((targets.mean(), targets.std()))
    assert float(y.mean()) == pytest.approx(0, abs=1e-6)
    assert float(y.std(unbiased=False)) == pytest.approx(1, abs=1e-6)
    assert Regress().bound(targets, OutputScale(1.0, 2.0)).scale == (1.0, 2.0)
    assert Regress().bound(np.full(3, 7.0)).scale == (7.0, 1.0)


def test_metrics_are_in_the_units_of_the_target(problem):
    targets, task, y, outputs = problem
    predicted = task.scale.mean + task.scale.scale * outputs[:, 0].double().numpy()
    scores = task.scores(outputs, y, task.metrics)
    assert scores["rmse"] == pytest.approx(root_mean_squared_error(targets, predicted), rel=1e-5)
    assert scores["mae"] == pytest.approx(mean_absolute_error(targets, predicted), rel=1e-5)
    assert scores["r2"] == pytest.approx(r2_score(targets, predicted), rel=1e-5)
    assert task.scores(outputs[:1], y[:1], ["r2"])["r2"] is None
    assert task.selection_value("rmse", 2.0) == -2.0
    assert task.selection_value("r2", 0.5) == 0.5


def test_losses():
    y, output = torch.tensor([0.0, 1.0]), torch.tensor([[3.0], [1.5]])
    assert float(Regress().loss(output, y)) == pytest.approx((9 + 0.25) / 2)
    assert float(Regress(loss="huber").loss(output, y)) == pytest.approx((2.5 + 0.125) / 2)
    task = Regress(loss="pinball", level=0.8)
    assert task.quantiles == pytest.approx((0.5, 0.1, 0.9))
    assert len(task.outputs(())) == 3
    outputs = torch.tensor([[3.0, -1.0, 4.0], [1.5, 0.5, 0.75]])
    columns = [mean_pinball_loss(y, outputs[:, i], alpha=q) for i, q in enumerate(task.quantiles)]
    assert float(task.loss(outputs, y)) == pytest.approx(np.mean(columns), rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"loss": "l3"}, "`loss`"), ({"delta": 0}, "`delta`"), ({"level": 1.0}, "`level`"), ({"level": True}, "level")],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(BadInput, match=message):
        catalog.build("tasks", "regress", options=settings)


@pytest.mark.parametrize("columns", [1, 3])
def test_conformal_intervals_cover_new_examples(columns):
    rng = np.random.default_rng(1)

    def draw(n):
        y = torch.from_numpy(rng.standard_normal(n)).float()
        centre = (y + 0.5 * torch.from_numpy(rng.standard_normal(n)).float())[:, None]
        return (centre + torch.tensor([[0.0, -0.2, 0.2]]))[:, :columns], y

    shares = []
    for _ in range(200):
        margin = conformal_margin(*draw(50), 0.9)
        assert margin is not None
        outputs, y = draw(200)
        low, high = interval(outputs, margin)
        shares.append(float(((y >= low) & (y <= high)).float().mean()))
    assert np.mean(shares) == pytest.approx(46 / 51, abs=0.02)  # rank 46 of 50 distances


def test_too_few_validation_rows_give_no_interval():
    assert conformal_margin(torch.zeros(8, 1), torch.arange(8.0), 0.9) is None
    assert conformal_margin(torch.zeros(9, 1), torch.arange(9.0), 0.9) == 8.0
    task = Regress().bound(np.arange(8.0)).calibrated(torch.zeros(8, 1), torch.arange(8.0))
    assert "coverage" not in task.reported


def test_calibrated_task_reports_coverage_width_and_points(problem):
    targets, task, y, outputs = problem
    calibrated = task.calibrated(outputs, y)
    scores = calibrated.scores(outputs, y, calibrated.reported)
    assert 0.9 <= scores["coverage"] <= 0.91
    assert scores["interval_width"] == pytest.approx(2 * calibrated.margin * task.scale.scale, rel=1e-5)
    points = calibrated.summary(outputs, y)
    np.testing.assert_allclose(points["observed"], targets, rtol=1e-4)
    assert all(low < high for low, high in zip(points["low"], points["high"], strict=True))
    assert task.margin is None  # the task itself is unchanged
