"""Linear probing before full tuning: the head is fitted on frozen features, and the encoder is trained afterwards."""

import copy

import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator
from holdfast.data.synthetic import world
from holdfast.train.assemble import assemble
from holdfast.train.initialise import fit_neck_and_head
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.tiny import tiny_bert

TEXTS = world("text", "none", domains=3, size=24, classes=2, seed=0)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return f"hf:{tiny_bert(tmp_path_factory.mktemp('bert'))}"


def spec_of(bert, **settings):
    small = {"encoder.length": 12, "steps": 2, "every": 1, "batch": 4}
    return make_spec(TEXTS, encoder=bert, tune="lp-ft", settings={**small, **settings})


@pytest.mark.parametrize("settings", [{}, {"neck": "memory", "neck.slots": 4}, {"method": "hma"}])
def test_neck_and_head_are_fitted_on_unchanged_features(bert, settings):
    spec, workspace = spec_of(bert, **settings), Workspace(TEXTS, cache=None)
    episode = workspace.episodes(spec)[0]
    assembly = assemble(spec, episode, workspace)
    method, stage = assembly.make(), episode.stages[0]
    before = copy.deepcopy(method.model)
    rows = torch.cat([assembly.examples.rows_of(part) for part in stage.train])

    def risk(model):
        x, y = assembly.examples.inputs_and_targets(rows)
        with torch.no_grad():
            return float(assembly.task.loss(model.eval()(x), y))

    fit_neck_and_head(method, assembly.task, assembly.examples, stage.train, 4, generator=generator(0, "probe"))
    assert risk(method.model) < risk(before) - 0.05
    for name, tensor in before.backbone.state_dict().items():
        assert torch.equal(method.model.backbone.state_dict()[name], tensor), name
    assert all(p.grad is None for p in method.parameters())


def test_a_run_starts_from_the_fitted_head_and_trains_the_encoder(bert):
    spec, workspace = spec_of(bert, average="none"), Workspace(TEXTS, cache=None)
    assert spec.lr_args["head"] == 1.0  # it is not new any more
    episode = workspace.episodes(spec)[0]
    start = assemble(spec, episode, workspace).make().model
    record, assembly = train(spec, episode, workspace)
    trained = assembly.method.deployed
    assert record.stages[0]["history"][0]["risk"] < 0.6  # log 2 with a random head
    assert not torch.equal(trained.head.weight, start.head.weight)
    pairs = zip(trained.backbone.parameters(), start.backbone.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_other_tasks_are_refused(bert):
    with pytest.raises(BadInput, match=r"lp-ft.*not the task masked"):
        spec_of(bert, task="masked")
