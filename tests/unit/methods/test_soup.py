"""Averages of weights: greedy soups on given validation scores, and interpolation with the start."""

from dataclasses import replace

import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.methods.averaging import Soup
from holdfast.methods.base import StageInfo
from holdfast.train.resolve import Request, resolve
from holdfast.train.run import train, training_steps
from holdfast.train.workspace import Workspace
from tests.unit.methods.test_averaging import Counting, weight

DATA = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)


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


def test_every_member_starts_from_the_same_weights():
    method = Soup(Counting(), members=2)
    for name in method.phases:
        method.begin_phase(name)
        assert float(method.model.head.weight.detach()) == 0
        method.step(None)
        method.on_valid(1, {"a": 1.0}, {"a": 0.0})
        method.end_phase(name, [])


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


def test_soup_is_never_worse_than_its_first_member_on_validation_rows():
    (plain, _, _), (record, _, _) = run("erm"), run("soup(erm)")
    metric = record.spec["metric"]
    single, mixed = (sum(s[metric] for s in r.stages[0]["valid"].values()) for r in (plain, record))
    assert mixed >= single
    assert record.stages[0]["history"][-1]["members"] >= 1


def test_steps_count_all_trainings_and_unsuitable_methods_raise():
    spec = resolve(Request(methods=["soup(erm)"]), Workspace(DATA))[0].spec
    assert training_steps(spec) == 3 * spec.steps
    assert training_steps(replace(spec, method_args={"members": 2})) == 2 * spec.steps
    with pytest.raises(BadInput, match="one phase"):
        run("soup(swad(erm))")
