"""A batch that is too large for the device is taken in pieces with the same update, or a sentence tells why not."""

import logging

import pytest
import torch
from torch import nn

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.model import Model
from holdfast.protocols.microbatch import train_step
from holdfast.protocols.resume import Saver
from holdfast.run.settings import make_spec
from holdfast.run.train import train
from holdfast.run.workspace import Workspace
from holdfast.tasks.classify import Classify

DATA = world("vector", "rotation", domains=3, size=30, classes=2, seed=0)


def spec_for(method, **more):
    return make_spec(DATA, method=method, steps=6, every=3, batch=5, settings={"encoder.hidden": [4], **more})


def ending(spec, saver=None, tick=None):
    workspace = Workspace(DATA)
    record, built = train(spec, workspace.episodes(spec)[0], workspace, saver=saver, tick=tick)
    return record, built.deploy().state_dict()


@pytest.fixture
def small(monkeypatch):
    """A device whose memory holds the loss of four examples, as far as training goes."""
    plain = Classify.loss

    def loss(self, output, y):
        if output.requires_grad and len(y) > 4:
            raise torch.OutOfMemoryError("too much")
        return plain(self, output, y)

    def shrink():
        monkeypatch.setattr(Classify, "loss", loss)

    return shrink


def test_pieces_hold_every_example_once_and_their_share_of_each_domain():
    batch = DomainBatch(torch.arange(7.0)[:, None], torch.arange(7), (4, 9), (5, 2))
    for count in (1, 2, 3, 5):
        pieces = list(batch.microbatches(count))
        assert sorted(torch.cat([p.y for p in pieces]).tolist()) == list(range(7))
        for piece in pieces:
            assert torch.equal(piece.x[:, 0].long(), piece.y)
            for part in piece.by_domain():
                assert all((4 if y < 5 else 9) == part.domains[0] for y in part.y.tolist())
    assert [len(p.y) for p in batch.microbatches(2)] == [3, 4]


@pytest.mark.parametrize("method", ["erm", "moving-average(erm)"])
def test_the_update_is_that_of_the_whole_batch(small, caplog, method):
    spec = spec_for(method, optimizer="sgd", lr=0.1)
    record, whole = ending(spec)
    small()
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        again, pieces = ending(spec)
    told = [r.getMessage() for r in caplog.records]
    assert any("in 2 pieces" in each for each in told)
    assert any("in 4 pieces" in each for each in told)
    assert "pieces" not in record.stages[0]
    assert again.stages[0]["pieces"] == 4
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, rtol=1e-4, atol=1e-6)


def test_a_stopped_run_goes_on_in_the_same_pieces(small, tmp_path):
    class Killed(Exception):
        pass

    def tick(metrics):
        left.append(1)
        if len(left) == 4:
            raise Killed

    left, spec = [], spec_for("erm", **{"encoder.dropout": 0.4})
    small()
    _, whole = ending(spec)
    with pytest.raises(Killed):
        ending(spec, Saver(tmp_path / "run", seconds=0.0), tick)
    _, again = ending(spec, Saver(tmp_path / "run", seconds=0.0))
    for name, value in whole.items():
        assert torch.equal(again[name], value), name


def test_where_it_would_be_another_update_a_sentence_says_so(small):
    small()
    with pytest.raises(BadInput, match=r"too little memory.*all examples of a batch.*--batch"):
        ending(spec_for("coral"))


def test_memory_that_runs_out_between_the_batches_of_one_update_is_told(monkeypatch):
    plain, seen = Classify.loss, []

    def loss(self, output, y):
        seen.append(1)
        if len(seen) == 2:
            raise torch.OutOfMemoryError("too much")
        return plain(self, output, y)

    monkeypatch.setattr(Classify, "loss", loss)
    with pytest.raises(BadInput, match=r"one update.*larger accumulate"):
        ending(spec_for("erm", accumulate=2))


@pytest.mark.gpu
def test_a_device_that_is_full_is_survived():
    network = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(40)])
    model = Model(network, nn.Identity(), nn.Linear(1024, 2)).to("cuda")
    method = ERM(model, task=Classify(), optimizer=lambda p: Optimizer(OptimizerSettings(optimizer="sgd"), p))
    x, y = torch.randn(16384, 1024, device="cuda"), torch.zeros(16384, dtype=torch.long, device="cuda")
    room = torch.cuda.memory_allocated() + 2**30  # the states of all layers would take five
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    try:
        assert train_step(method, DomainBatch(x, y, (0,), (len(y),)))["risk"].isfinite()
        assert method.microbatches >= 4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
