"""Checkpoints of a run: resuming, folds, and damaged files."""

import logging
import time
from dataclasses import replace

import pytest
import torch

from holdfast.data.synthetic import world
from holdfast.methods.erm import ERM
from holdfast.record import load
from holdfast.train.resume import Saver
from holdfast.train.run import train, train_and_save
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.interrupted import Killed, killer

DATA = world("vector", "rotation", domains=3, size=30, classes=2, seed=0)
SPEC = make_spec(
    DATA, method="erm", steps=8, every=4, batch=4, settings={"encoder.hidden": [4], "encoder.dropout": 0.2}
)


def interrupted(folder):
    workspace = Workspace(DATA)
    episode = workspace.episodes(SPEC)[0]
    path = folder / "run.safetensors"
    with pytest.raises(Killed):
        train(SPEC, episode, workspace, saver=Saver(path, seconds=0.0), tick=killer(6))
    return workspace, episode, path


def flipped(path):
    content = path.read_bytes()
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 4]) + content[-2:])


def short(path):
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("damage", [flipped, short, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(tmp_path, caplog, damage):
    workspace, episode, path = interrupted(tmp_path)
    damage(path)
    saver, steps = Saver(path), []
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        record, built = train(SPEC, episode, workspace, saver=saver, tick=steps.append)
    assert [r.getMessage() for r in caplog.records if "run.safetensors is damaged" in r.getMessage()]
    assert len(steps) == 4  # five steps were saved, the last of them is lost
    complete, other = train(SPEC, episode, workspace)
    assert record.stages == complete.stages
    for name, value in other.deploy().state_dict().items():
        assert torch.equal(value, built.deploy().state_dict()[name])


@pytest.mark.parametrize("first", [3, 13])
def test_folds_resume(tmp_path, monkeypatch, first):
    """The run has two folds of eight steps, then the training itself."""
    spec, workspace = replace(SPEC, select="leave-one-domain-out"), Workspace(DATA)
    episode, taken, step = workspace.episodes(spec)[0], [], ERM.step
    path, attempts = tmp_path / "run.safetensors", iter([first])

    def trained(saver=None):
        taken.clear()
        limit = next(attempts, 99)

        def counted(self, batch):
            if len(taken) == limit:
                raise Killed
            taken.append(step(self, batch))
            return taken[-1]

        monkeypatch.setattr(ERM, "step", counted)
        return train(spec, episode, workspace, saver=saver)

    with pytest.raises(Killed):
        trained(Saver(path, seconds=0.0))
    saver = Saver(path, seconds=0.0)
    record, built = trained(saver)
    remaining = len(taken)
    complete, other = trained()
    assert (record.stages, remaining) == (complete.stages, len(taken) - first)
    for name, value in other.deploy().state_dict().items():
        assert torch.equal(value, built.deploy().state_dict()[name])
    saver.finish()
    assert list(tmp_path.iterdir()) == []


def test_two_damaged_checkpoints_start_the_run_again(tmp_path, caplog):
    path = interrupted(tmp_path)[-1]
    saver = Saver(path)
    flipped(path)
    short(saver.previous)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert saver.load() is None
    assert "run.safetensors.previous is damaged" in caplog.records[-1].getMessage()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_record_is_set_aside_and_its_run_repeated(tmp_path, caplog):
    workspace = Workspace(DATA, out=tmp_path)
    episode = workspace.episodes(SPEC)[0]
    first = train_and_save(SPEC, episode, workspace)
    (path,) = (tmp_path / "records").glob("*.json")
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        again = train_and_save(SPEC, episode, workspace)
    assert "set aside" in caplog.records[-1].getMessage()
    assert again.stages == first.stages
    assert [r.id for r in load(tmp_path)] == [first.id]
    assert path.with_name(f"{path.name}.damaged").exists()


def test_a_changed_system_clock_has_no_effect(tmp_path, monkeypatch):
    workspace, episode, path = interrupted(tmp_path)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    record, _ = train(SPEC, episode, workspace, saver=Saver(path))
    assert record.stages == train(SPEC, episode, workspace)[0].stages
    assert record.cost["seconds"] > 0
