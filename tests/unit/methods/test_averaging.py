"""Weight averaging: the window of SWAD on given validation curves, and moving averages."""

from functools import partial

import pytest
import torch
from torch import nn

from holdfast.methods.averaging import SWAD, MovingAverage, valley_start
from holdfast.methods.base import Method, StageInfo
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck


class Counting(Method):
    """A method whose only weight is the number of steps."""

    saved_attributes = ()

    def __init__(self):
        nn.Module.__init__(self)
        self.model = Model(nn.Identity(), NoNeck(1), nn.Linear(1, 1, bias=False))
        with torch.no_grad():
            self.model.head.weight.zero_()

    def step(self, batch):
        with torch.no_grad():
            self.model.head.weight += 1
        return {"risk": torch.tensor(0.0)}


def weight(method):
    return float(method.deployed.head.weight.detach())


def swad(losses, *, steps=2, **settings):
    method = SWAD(Counting(), **settings)
    method.begin_stage(StageInfo(0, ("a",)))
    for i, loss in enumerate(losses):
        for _ in range(steps):
            method.step(None)
        method.on_valid((i + 1) * steps, {"a": 0.0}, {"a": loss})
    assert weight(method) == steps * len(losses)  # until the end of the stage the trained network is deployed
    method.end_stage([])
    return weight(method)


def segment(*indices):
    """Return the mean weight of the given segments of two steps."""
    values = [w for i in indices for w in (2 * i + 1, 2 * i + 2)]
    return sum(values) / len(values)


def test_start_of_the_valley():
    assert valley_start([3, 2, 1], 3, 1.3) == (-1, 0.0)
    start, threshold = valley_start([3, 1, 2, 2], 3, 1.3)
    assert start == 1
    assert threshold == pytest.approx(1.3 * 5 / 3)


def test_the_average_covers_the_valley():
    # start at index 2 (1.0, 1.1, 1.2; threshold 1.3 * 1.1 = 1.43); from index 6 on, six in a row lie above it
    losses = [3.0, 2.0, 1.0, 1.1, 1.2, 1.3, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert swad(losses) == pytest.approx(segment(2, 3, 4, 5))


def test_a_short_bump_does_not_end_the_valley():
    losses = [2.0, 1.0, 1.1, 1.2, 2.0, 2.0, 1.1, 1.1]
    assert swad(losses) == pytest.approx(segment(1, 2, 3, 4, 5, 6, 7))


def test_a_rise_at_the_end_of_training_is_left_out():
    losses = [2.0, 1.0, 1.1, 1.2, 2.0, 1.1, 2.0, 2.0]  # fewer than `tolerate`, but no later loss is low
    assert swad(losses) == pytest.approx(segment(1, 2, 3, 4, 5))


def test_all_segments_are_averaged_while_the_loss_is_low():
    assert swad([2.0, 1.0, 1.1, 1.1, 1.1, 1.2]) == pytest.approx(segment(1, 2, 3, 4, 5))


def test_without_a_valley_the_newest_segment_is_used():
    assert swad([5.0, 4.0, 3.0, 2.0]) == pytest.approx(segment(3))


def test_moving_average_from_its_start():
    method = MovingAverage(Counting(), start=3)
    for _ in range(3):
        method.step(None)
    assert weight(method) == 3
    for _ in range(4):
        method.step(None)
    assert weight(method) == pytest.approx((4 + 5 + 6 + 7) / 4)
    assert float(method.model.head.weight.detach()) == 7


class TwoPhases(Counting):
    """A method of two phases; the second starts at weight 100."""

    phases = ("first", "second")

    def begin_phase(self, name):
        with torch.no_grad():
            self.model.head.weight.fill_(0.0 if name == "first" else 100.0)


@pytest.mark.parametrize("wrapper", [partial(SWAD, converge=3), partial(MovingAverage, start=0)])
def test_phases_are_averaged_separately(wrapper):
    method = wrapper(TwoPhases())
    method.begin_stage(StageInfo(0, ("a",)))
    for phase in method.phases:
        method.begin_phase(phase)
        for i, loss in enumerate([2.0, 1.0, 1.1, 1.1, 1.1]):
            method.step(None)
            method.on_valid(i + 1, {"a": 0.0}, {"a": loss})
        assert weight(method) <= 5 if phase == "first" else weight(method) > 100
    method.end_stage([])
    assert 102 <= weight(method) <= 104


@pytest.mark.parametrize("statistics", ["newest", "mean"])
def test_statistics_of_batch_norm_are_those_of_the_newest_step_or_their_mean(statistics):
    method = Counting()
    method.model.backbone = nn.BatchNorm1d(1)
    average = MovingAverage(method, start=0, statistics=statistics)
    for value in (1.0, 2.0, 6.0):
        method.model.backbone.running_mean.fill_(value)
        average.step(None)
    assert float(average.deployed.backbone.running_mean) == pytest.approx(6.0 if statistics == "newest" else 3.0)
    average.end_stage(())
    assert float(average.deployed.backbone.running_mean) == pytest.approx(6.0 if statistics == "newest" else 3.0)
