"""A NaN loss ends a run at its first step; the run is repeated once at a lower rate, which its record states."""

import pickle
from dataclasses import replace
from functools import partial

import pytest
import torch

from holdfast.core.stopping import Interrupted, request_stop, withdraw_request
from holdfast.data.synthetic import world
from holdfast.record import read_finished
from holdfast.tasks.classify import Classify
from holdfast.train import run as module
from holdfast.train.fit import Diverged
from holdfast.train.resume import Saver
from holdfast.train.run import checkpoint_path, record_path, train, train_and_save
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace

RATE = 1e4  # diverges with this network, and does not at a third with clipped gradients


@pytest.fixture
def workspace(tmp_path):
    return Workspace(world("vector", "rotation", domains=3, size=24), cache=None, out=tmp_path)


@pytest.fixture
def steep(workspace):
    settings = {"encoder.hidden": [4], "every": 4, "optimizer": "sgd"}
    return make_spec(workspace.dataset, steps=12, batch=4, lr=RATE, settings=settings)


def first_episode(workspace, spec):
    return workspace.episodes(spec)[0]


def test_a_run_that_diverges_is_repeated_and_keeps_its_id(workspace, steep):
    episode = first_episode(workspace, steep)
    record = train_and_save(steep, episode, workspace)
    remark = record.stages[-1].pop("repeated")
    assert remark == {"lr": RATE / 3, "clip": 1.0, "because": remark["because"]}
    assert remark["because"].startswith("training diverged: risk is nan at step")
    assert ";" not in remark["because"]
    assert record.spec == steep.json()
    assert read_finished(record_path(steep, episode, workspace.out)) is not None
    milder = replace(steep, lr=RATE / 3, clip=1.0)
    assert train_and_save(milder, episode, workspace).stages == record.stages
    assert list((workspace.out / "checkpoints").glob("*")) == []


def test_the_clip_of_the_spec_is_lowered_too(workspace, steep, monkeypatch):
    seen = []

    def train(spec, *_, **options):
        seen.append((spec.lr, spec.clip))
        raise Diverged.at("training diverged: x; y", 3, (1,))

    monkeypatch.setattr(module, "train", train)
    own = replace(steep, lr=3.0, clip=6.0)
    with pytest.raises(Diverged, match=r"second attempt, with lr 1 and clip 2$"):
        train_and_save(own, first_episode(workspace, own), workspace)
    assert seen == [(3.0, 6.0), (1.0, 2.0)]
    seen.clear()
    solved = make_spec(workspace.dataset, method="logistic")
    with pytest.raises(Diverged):
        train_and_save(solved, first_episode(workspace, solved), workspace)
    assert len(seen) == 1


def test_an_interrupted_repetition_continues(workspace, steep, tmp_path, monkeypatch):
    episode, steps = first_episode(workspace, steep), []
    expected = train_and_save(steep, episode, replace(workspace, out=tmp_path / "expected"))

    def stop_late(metrics):
        steps.append(metrics)
        if len(steps) == diverged_after + 6:
            request_stop()

    train_and_save(steep, episode, replace(workspace, out=tmp_path / "counted"), tick=steps.append)
    diverged_after = len(steps) - steep.steps
    steps.clear()
    with pytest.raises(Interrupted):
        train_and_save(steep, episode, workspace, tick=stop_late)
    withdraw_request()
    path = checkpoint_path(steep, episode, workspace.out)
    assert path.with_name(f"{path.stem}.fold-milder{path.suffix}").exists()
    specs = []
    trained = module.train
    monkeypatch.setattr(
        module, "train", lambda spec, *rest, **options: specs.append(spec) or trained(spec, *rest, **options)
    )
    steps.clear()
    record = train_and_save(steep, episode, workspace, tick=partial(steps.append))
    assert [spec.lr for spec in specs] == [RATE / 3]
    assert len(steps) == steep.steps - 6
    assert record.stages == expected.stages
    assert list((workspace.out / "checkpoints").glob("*")) == []


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
