"""A loss that is no number ends a run at the step where it began, with the batch's rows, and spoils no checkpoint."""

import pickle
from dataclasses import replace

import pytest
import torch

from holdfast.data.synthetic import world
from holdfast.protocols.fit import Diverged, by_device
from holdfast.protocols.resume import Saver
from holdfast.run.settings import make_spec
from holdfast.run.train import train
from holdfast.run.workspace import Workspace
from holdfast.tasks.classify import Classify

DATA = world("vector", "rotation", domains=3, size=30, classes=2, seed=0)
DATA = replace(DATA, ids=[f"row-{i}" for i in range(len(DATA))])
SPEC = make_spec(DATA, method="erm", steps=20, every=10, batch=4, settings={"encoder.hidden": [4]})


@pytest.fixture
def poisoned(monkeypatch):
    """From the seventh batch on the loss is not a number; the targets of that batch are kept."""
    seen, plain = [], Classify.loss

    def loss(self, output, y):
        if output.requires_grad:
            seen.append(y)
        return plain(self, output, y) * (float("nan") if len(seen) >= 7 and output.requires_grad else 1.0)

    monkeypatch.setattr(Classify, "loss", loss)
    return seen


def test_the_step_and_the_rows_are_those_of_the_first_bad_batch(tmp_path, poisoned):
    workspace = Workspace(DATA)
    episode = workspace.episodes(SPEC)[0]
    path = tmp_path / "run.safetensors"
    with pytest.raises(Diverged, match=r"risk is nan at step 7; lower --lr.*held ids row-\d+, row-") as caught:
        train(SPEC, episode, workspace, saver=Saver(path, seconds=0.0))
    assert caught.value.step == 7
    assert len(caught.value.rows) == 8  # four of each of two domains
    assert sorted(DATA.y[list(caught.value.rows)]) == sorted(poisoned[6].tolist())
    assert caught.value.rows == pickle.loads(pickle.dumps(caught.value)).rows  # a worker sends it on
    saved = Saver(path).load()
    assert saved["fit"]["step"] == 6
    assert all(v.isfinite().all() for v in saved["fit"]["method"].values() if isinstance(v, torch.Tensor))


def test_without_ids_rows_are_numbered_as_in_the_data(poisoned):
    workspace = Workspace(replace(DATA, ids=None))
    episode = workspace.episodes(SPEC)[0]
    with pytest.raises(Diverged, match=r"held rows \d+, ") as caught:
        train(SPEC, episode, workspace)
    assert f"rows {caught.value.rows[0] + 1}, " in str(caught.value)


def test_values_are_asked_where_they_lie():
    """A method counts on the host what it learns on a device; `meta` stands for the device."""
    host, device = torch.ones(()), torch.ones((), device="meta")
    found = by_device([host, device, host])
    assert {place.type: len(some) for place, some in found.items()} == {"cpu": 2, "meta": 1}


@pytest.mark.gpu
def test_a_stream_with_a_buffer_is_learned_on_the_device():
    spec = make_spec(DATA, method="replay", plan="stream", steps=4, every=2, batch=4)
    workspace = Workspace(DATA, device=torch.device("cuda"))
    record, _ = train(spec, workspace.episodes(spec)[0], workspace)
    assert len(record.stages) == 3
