"""Averages of weights: SWAD on given validation losses, moving averages, greedy soups, interpolation with the start."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.methods.averaging import SWAD, MovingAverage, Soup, valley_start
from holdfast.methods.base import Method, StageInfo
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.train.resolve import Request, resolve
from holdfast.train.run import train, training_steps
from holdfast.train.workspace import Workspace

DATA = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)


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


@pytest.mark.parametrize(
    ("losses", "valley"),
    [
        # start at index 2 (1.0, 1.1, 1.2; threshold 1.3 * 1.1 = 1.43); from index 6 on, six in a row lie above it
        ([3.0, 2.0, 1.0, 1.1, 1.2, 1.3, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], [2, 3, 4, 5]),
        ([2.0, 1.0, 1.1, 1.2, 2.0, 2.0, 1.1, 1.1], [1, 2, 3, 4, 5, 6, 7]),  # a short bump does not end it
        ([2.0, 1.0, 1.1, 1.2, 2.0, 1.1, 2.0, 2.0], [1, 2, 3, 4, 5]),  # nor do fewer than `tolerate` at the end
        ([2.0, 1.0, 1.1, 1.1, 1.1, 1.2], [1, 2, 3, 4, 5]),
        ([5.0, 4.0, 3.0, 2.0], [3]),  # without a valley the newest segment is used
    ],
)
def test_the_average_covers_the_valley(losses, valley):
    assert swad(losses) == pytest.approx(segment(*valley))


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


@pytest.mark.parametrize("wrapper", [SWAD, partial(MovingAverage, start=0)])
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


def soup(*trainings):
    """Return the weight and the number of members after trainings, each a (number of steps, validation score)."""
    method = Soup(Counting(), members=len(trainings))
    method.begin_stage(StageInfo(0, ("a",)))
    for name, (steps, score) in zip(method.phases, trainings, strict=True):
        method.begin_phase(name)
        for _ in range(steps):
            method.step(None)
        method.on_valid(steps, {"a": score}, {"a": 0.0})
        members = method.end_phase(name, [])["members"]
    return weight(method), members


def test_members_that_improve_the_validation_score_are_averaged():
    assert soup((4, 0.5)) == (4, 1)
    assert soup((4, 0.5), (8, 0.6)) == (6, 2)
    assert soup((4, 0.5), (8, 0.5)) == (4, 1)  # no improvement: dropped
    assert soup((4, 0.5), (8, 0.4), (2, 0.7)) == (3, 2)
    assert soup((4, 0.5), (8, 0.6), (9, 0.7)) == (7, 3)


def run(method, **settings):
    """Return the record and the deployed network of one run."""
    workspace = Workspace(DATA, cache=None)
    options = {"encoder.hidden": [8], "plan.targets": ["domain-0"], "encoder": "mlp", **settings}
    (job,) = resolve(Request(methods=[method], steps=20, lr=0.01, settings=options), workspace)
    record, assembly = train(job.spec, job.episode_in(workspace), workspace)
    return record, assembly.deploy(), assembly


def test_null_controls_one_member_and_a_share_of_one_equal_the_method():
    plain, expected, _ = run("erm")
    for name, settings in (("soup(erm)", {"method.members": 1}), ("wise-ft(erm)", {"method.share": 1.0})):
        record, model, _ = run(name, **settings)
        assert record.stages[0]["test"] == plain.stages[0]["test"]
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_share_of_zero_restores_the_start_of_the_encoder_only():
    _, model, assembly = run("wise-ft(erm)", **{"method.share": 0.0})
    start, trained = assembly.make().model, assembly.method.method.deployed
    for a, b in zip(model.backbone.parameters(), start.backbone.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-7)
    assert torch.equal(model.head.weight, trained.head.weight)
    assert not torch.equal(model.head.weight, start.head.weight)


def test_share_is_the_first_with_the_best_validation_score():
    record, _, assembly = run("wise-ft(erm)")
    tried = [entry for entry in record.stages[0]["history"] if entry["phase"] == "choose"]
    assert [entry["share"] for entry in tried] == [round(1 - i / 10, 1) for i in range(11)]
    means = [sum(entry["valid"].values()) / len(entry["valid"]) for entry in tried]
    assert assembly.method.share == tried[means.index(max(means))]["share"]


def test_steps_count_all_trainings_and_unsuitable_methods_raise():
    spec = resolve(Request(methods=["soup(erm)"]), Workspace(DATA))[0].spec
    assert training_steps(spec) == 3 * spec.steps
    assert training_steps(replace(spec, method_args={"members": 2})) == 2 * spec.steps
    with pytest.raises(BadInput, match="one phase"):
        run("soup(swad(erm))")
