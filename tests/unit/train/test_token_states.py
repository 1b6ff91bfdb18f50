"""Cached states of a frozen encoder at the positions of tags and answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast.nn.backbones.small import Features
from holdfast.train import workspace as workspaces
from holdfast.train.assemble import assemble
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace
from tests.annotated import write_names, write_questions
from tests.tiny import tiny_masked

STEPS = {"steps": 6, "every": 3, "encoder.length": 24}


@pytest.fixture(params=["tag", "span"])
def case(request, tmp_path):
    """Return the data, the spec of a frozen encoder and its workspace with a cache."""
    write = {
        "tag": lambda: write_names(tmp_path / "names", 12),
        "span": lambda: write_questions(tmp_path / "q.jsonl", 12),
    }
    dataset = training_data(str(write[request.param]()), task=request.param)
    encoder = f"hf:{tiny_masked(tmp_path / 'bert')}"
    spec = make_spec(dataset, encoder=encoder, device=torch.device("cpu"), settings={"task": request.param, **STEPS})
    return dataset, spec, Workspace(dataset, cache=tmp_path / "cache", out=tmp_path / "out")


def test_states_equal_those_of_the_encoder(case):
    _, spec, workspace = case
    (episode, *_) = workspace.episodes(spec)
    cached = assemble(spec, episode, workspace)
    direct = assemble(spec, episode, replace(workspace, cache=None, states={}, structured={}))
    assert isinstance(cached.make().model.backbone, Features)
    rows = torch.arange(len(direct.examples)).flip(0)
    states = direct.encoder.eval()(direct.examples.inputs(rows))
    present = direct.examples.store.at.mask(rows)
    torch.testing.assert_close(cached.examples.inputs(rows)[present], states[present], rtol=2e-3, atol=2e-3)
    assert torch.equal(cached.examples.targets(rows), direct.examples.targets(rows))


def test_another_workspace_reads_them_from_the_cache(case, monkeypatch):
    _, spec, workspace = case
    (episode, *_) = workspace.episodes(spec)
    first = assemble(spec, episode, workspace).examples.inputs(torch.arange(5))
    monkeypatch.setattr(Workspace, "structured_examples", unencoded(Workspace.structured_examples))
    other = replace(workspace, states={}, structured={}, encoders={})
    assert torch.equal(assemble(spec, episode, other).examples.inputs(torch.arange(5)), first)


def unencoded(original):
    """Return the method with an iteration over the texts that raises."""

    def examples(self, *args):
        found, task = original(self, *args)
        found.iter_batches = None
        return found, task

    return examples


def test_a_sample_and_large_states(case, monkeypatch):
    _, spec, workspace = case
    sample = workspace.sampled(24)
    (episode, *_) = sample.episodes(spec)
    assert isinstance(assemble(spec, episode, sample).make().model.backbone, Features)
    monkeypatch.setattr(workspaces, "STATE_BYTES", 100)
    assert not isinstance(assemble(spec, episode, sample).make().model.backbone, Features)


def test_a_run_has_scores_and_a_network_for_texts(case):
    _, spec, workspace = case
    (episode, *_) = workspace.episodes(spec)
    record, assembly = train(spec, episode, workspace)
    assert record.cost["macs"] > 0
    assert np.isfinite(next(iter(record.stages[-1]["test"].values()))[spec.metric])
    model = assembly.deploy()
    assert model.backbone is assembly.encoder
    examples, _ = workspace.structured_examples(spec, assembly.task, assembly.encoder)
    outputs = model.eval()(examples.inputs(torch.arange(3)))
    assert outputs.shape[:2] == assembly.examples.inputs(torch.arange(3)).shape[:2]
    assert bool(outputs.isfinite().all())
