"""Microbatches give the update of the complete batch when the device runs out of memory."""

import logging
from functools import partial

import pytest
import torch
from torch import nn

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.model import Model
from holdfast.tasks.classify import Classify
from holdfast.train.fit import train_step
from holdfast.train.resume import Saver
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.interrupted import Killed, killer

DATA = world("vector", "rotation", domains=3, size=30, classes=2, seed=0)


def spec_for(method, **more):
    return make_spec(DATA, method=method, steps=6, every=3, batch=5, settings={"encoder.hidden": [4], **more})


def ending(spec, saver=None, tick=None):
    workspace = Workspace(DATA)
    record, built = train(spec, workspace.episodes(spec)[0], workspace, saver=saver, tick=tick)
    return record, built.deploy().state_dict()


@pytest.fixture
def small(monkeypatch):
    """Simulate a device that runs out of memory for the training loss of more than four examples."""
    plain = Classify.loss

    def loss(self, output, y):
        if output.requires_grad and len(y) > 4:
            raise torch.OutOfMemoryError("too much")
        return plain(self, output, y)

    def shrink():
        monkeypatch.setattr(Classify, "loss", loss)

    return shrink


def test_microbatches_cover_the_batch_with_all_domains():
    batch = DomainBatch(torch.arange(7.0)[:, None], torch.arange(7), (4, 9), (5, 2))
    for count in (1, 2, 3, 5):
        micro = list(batch.microbatches(count))
        assert sorted(torch.cat([p.y for p in micro]).tolist()) == list(range(7))
        for piece in micro:
            assert torch.equal(piece.x[:, 0].long(), piece.y)
            for group in piece.by_domain():
                assert all((4 if y < 5 else 9) == group.domains[0] for y in group.y.tolist())
    assert [len(p.y) for p in batch.microbatches(2)] == [3, 4]


@pytest.mark.parametrize("method", ["erm", "moving-average(erm)"])
def test_the_update_is_that_of_the_complete_batch(small, caplog, method):
    spec = spec_for(method, optimizer="sgd", lr=0.1)
    record, complete = ending(spec)
    small()
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        again, split = ending(spec)
    warnings = [r.getMessage() for r in caplog.records]
    assert any("2 microbatches" in warning for warning in warnings)
    assert any("4 microbatches" in warning for warning in warnings)
    assert "pieces" not in record.stages[0]
    assert again.stages[0]["pieces"] == 4
    for name, value in complete.items():
        torch.testing.assert_close(split[name], value, rtol=1e-4, atol=1e-6)


def test_a_resumed_run_has_the_same_microbatches(small, tmp_path):
    spec = spec_for("erm", **{"encoder.dropout": 0.4})
    small()
    _, complete = ending(spec)
    with pytest.raises(Killed):
        ending(spec, Saver(tmp_path / "run", seconds=0.0), killer(4))
    _, again = ending(spec, Saver(tmp_path / "run", seconds=0.0))
    for name, value in complete.items():
        assert torch.equal(again[name], value), name


def test_methods_that_need_the_complete_batch_are_an_error(small):
    small()
    with pytest.raises(BadInput, match=r"too little memory.*all examples of a batch.*--batch"):
        ending(spec_for("coral"))


def test_out_of_memory_between_accumulated_batches_is_an_error(monkeypatch):
    plain, calls = Classify.loss, []

    def loss(self, output, y):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("too much")
        return plain(self, output, y)

    monkeypatch.setattr(Classify, "loss", loss)
    with pytest.raises(BadInput, match=r"one update.*larger accumulate"):
        ending(spec_for("erm", accumulate=2))


@pytest.mark.gpu
def test_out_of_memory_on_a_gpu():
    network = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(40)])
    model = Model(network, nn.Identity(), nn.Linear(1024, 2)).to("cuda")
    method = ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(optimizer="sgd")))
    x, y = torch.randn(16384, 1024, device="cuda"), torch.zeros(16384, dtype=torch.long, device="cuda")
    room = torch.cuda.memory_allocated() + 2**30  # the activations of all layers need 5 GiB
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    try:
        assert train_step(method, DomainBatch(x, y, (0,), (len(y),)))["risk"].isfinite()
        assert method.microbatches >= 4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
