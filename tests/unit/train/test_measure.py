"""Cost of a run: multiply-adds equal hand counts, include cached encoders, and counting changes nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.data.synthetic import world
from holdfast.nn.macs import count_macs, try_count_macs
from holdfast.train import measure
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.tiny import tiny_bert, tiny_vit

VECTORS = world("vector", "rotation", domains=3, size=20, classes=2, seed=0)
WIDTH = VECTORS.raw.take(np.arange(1)).shape[1]


def run(dataset, *, cache=None, **options):
    spec = make_spec(dataset, steps=2, every=1, batch=2, **options)
    workspace = Workspace(dataset, cache=cache)
    return train(spec, workspace.episodes(spec)[0], workspace)


def test_macs_of_a_perceptron():
    record, assembly = run(VECTORS, settings={"encoder.hidden": [8]})
    assert record.cost["macs"] == WIDTH * 8 + 8 * 2
    assert list(record.cost)[-1] == "macs"
    assert assembly.method is not None


def test_macs_are_counted_once_per_network(monkeypatch):
    counted_inputs = []
    monkeypatch.setattr(measure, "try_count_macs", lambda model, x: counted_inputs.append(x) or len(counted_inputs))
    workspace = Workspace(VECTORS, cache=None)
    for seed, hidden in ((0, 8), (1, 8), (1, 4)):
        spec = make_spec(VECTORS, steps=2, every=1, batch=2, seed=seed, settings={"encoder.hidden": [hidden]})
        for episode in workspace.episodes(spec):
            train(spec, episode, workspace)
    assert len(counted_inputs) == 2
    assert torch.equal(counted_inputs[0], counted_inputs[1])


def test_cached_features_include_their_encoder(tmp_path):
    texts = world("text", "vocabulary", domains=3, size=20, classes=2, seed=0)
    bert = f"hf:{tiny_bert(tmp_path / 'bert')}"
    live, _ = run(texts, encoder=bert, tune="frozen")
    cached, _ = run(texts, encoder=bert, tune="frozen", cache=tmp_path)
    again, assembly = run(texts, encoder=bert, tune="frozen", cache=tmp_path)
    assert live.cost["macs"] == cached.cost["macs"] == again.cost["macs"] > 10_000
    assert assembly.deploy().backbone is assembly.encoder


def test_only_selected_experts_count(tmp_path):
    images = world("image", "rotation", domains=3, size=8, classes=2, seed=0)
    vit = f"vit:{tiny_vit(tmp_path)}"
    costs = [
        run(images, encoder=vit, tune="full", settings={"neck": "experts", "neck.count": 4, "neck.top": k})[0].cost
        for k in (1, 2, 3)
    ]
    work = [each["macs"] for each in costs]
    assert work[2] - work[1] == work[1] - work[0] > 0
    assert len({each["parameters"] for each in costs}) == 1


class Noisy(nn.Module):
    """Uses the RNG, and has a submodule in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.map = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x):
        return self.map(self.norm(x + torch.rand_like(x)))


def test_counting_restores_modes_statistics_and_rng():
    net = Noisy().train()
    net.norm.eval()
    rng, mean = torch.get_rng_state(), net.norm.running_mean.clone()
    assert count_macs(net, torch.ones(2, 3)) == 6
    assert (net.training, net.norm.training, net.map.training) == (True, False, True)
    assert torch.equal(rng, torch.get_rng_state())
    assert torch.equal(mean, net.norm.running_mean)


def test_networks_that_cannot_be_counted_have_no_macs():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("no plain tensor")

    assert try_count_macs(Broken(), torch.zeros(1)) is None
    assert try_count_macs(nn.ReLU(), torch.zeros(1)) is None  # no multiplication


@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_layers_count_every_step(layers):
    net = nn.LSTM(8, 16, layers, bidirectional=layers == 1)
    steps = {1: 2 * 4 * 16 * (8 + 16), 2: 4 * 16 * (8 + 16) + 4 * 16 * (16 + 16)}[layers]
    assert count_macs(net, torch.randn(1, 5, 8)) == 5 * steps
