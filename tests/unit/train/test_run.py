"""A run that diverges is repeated once at a lower rate, which its record states."""

from dataclasses import replace
from functools import partial

import pytest

from holdfast.core.stopping import Interrupted, request_stop, withdraw_request
from holdfast.data.synthetic import world
from holdfast.record import read_finished
from holdfast.train import run as module
from holdfast.train.fit import Diverged
from holdfast.train.run import checkpoint_path, record_path, train_and_save
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
