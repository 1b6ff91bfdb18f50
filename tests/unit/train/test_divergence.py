"""A NaN loss ends a run at its first step, names the rows of the batch, and never reaches a checkpoint."""

import pickle
from dataclasses import replace

import pytest
import torch

from holdfast.data.synthetic import world
from holdfast.tasks.classify import Classify
from holdfast.train.fit import Diverged
from holdfast.train.resume import Saver
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace

DATA = world("vector", "rotation", domains=3, size=30, classes=2, seed=0)
DATA = replace(DATA, ids=[f"row-{i}" for i in range(len(DATA))])
SPEC = make_spec(DATA, method="erm", steps=20, every=10, batch=4, settings={"encoder.hidden": [4]})


@pytest.fixture
def poisoned(monkeypatch):
    """Make the loss NaN from the seventh batch on; return the targets of all batches."""
    targets, plain = [], Classify.loss

    def loss(self, output, y):
        if output.requires_grad:
            targets.append(y)
        return plain(self, output, y) * (float("nan") if len(targets) >= 7 and output.requires_grad else 1.0)

    monkeypatch.setattr(Classify, "loss", loss)
    return targets


def test_the_error_has_the_step_and_rows_of_the_first_bad_batch(tmp_path, poisoned):
    workspace = Workspace(DATA)
    episode = workspace.episodes(SPEC)[0]
    path = tmp_path / "run.safetensors"
    with pytest.raises(Diverged, match=r"risk is nan at step 7; lower --lr.*ids row-\d+, row-") as caught:
        train(SPEC, episode, workspace, saver=Saver(path, seconds=0.0))
    assert caught.value.step == 7
    assert len(caught.value.rows) == 8  # four per domain
    assert sorted(DATA.y[list(caught.value.rows)]) == sorted(poisoned[6].tolist())
    assert caught.value.rows == pickle.loads(pickle.dumps(caught.value)).rows  # workers send it to the main process
    saved = Saver(path).load()
    assert saved["fit"]["step"] == 6
    assert all(v.isfinite().all() for v in saved["fit"]["method"].values() if isinstance(v, torch.Tensor))


def test_rows_without_ids_are_numbered(poisoned):
    workspace = Workspace(replace(DATA, ids=None))
    episode = workspace.episodes(SPEC)[0]
    with pytest.raises(Diverged, match=r"rows \d+, ") as caught:
        train(SPEC, episode, workspace)
    assert f"rows {caught.value.rows[0] + 1}, " in str(caught.value)


@pytest.mark.gpu
def test_metrics_on_cpu_and_gpu():
    spec = make_spec(DATA, method="replay", plan="stream", steps=4, every=2, batch=4)
    workspace = Workspace(DATA, device=torch.device("cuda"))
    record, _ = train(spec, workspace.episodes(spec)[0], workspace)
    assert len(record.stages) == 3
