"""The checkpoint of a run: cut short or with another bit, the one before it is used, and a sentence says so."""

import logging
import time
from dataclasses import replace

import pytest
import torch

from holdfast.data.synthetic import world
from holdfast.methods.erm import ERM
from holdfast.protocols.resume import Saver
from holdfast.record import load
from holdfast.run.settings import make_spec
from holdfast.run.train import run_episode, train
from holdfast.run.workspace import Workspace

DATA = world("vector", "rotation", domains=3, size=30, classes=2, seed=0)
SPEC = make_spec(
    DATA, method="erm", steps=8, every=4, batch=4, settings={"encoder.hidden": [4], "encoder.dropout": 0.2}
)


class Killed(Exception):
    pass


def killed_after(count):
    left = iter(range(count))

    def tick(metrics):
        if next(left, None) is None:
            raise Killed

    return tick


def begun(folder):
    workspace = Workspace(DATA)
    episode = workspace.episodes(SPEC)[0]
    path = folder / "run.safetensors"
    with pytest.raises(Killed):
        train(SPEC, episode, workspace, saver=Saver(path, seconds=0.0), tick=killed_after(5))
    return workspace, episode, path


def flipped(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:])


def short(path):
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("damage", [flipped, short, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(tmp_path, caplog, damage):
    workspace, episode, path = begun(tmp_path)
    damage(path)
    saver, steps = Saver(path), []
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        record, built = train(SPEC, episode, workspace, saver=saver, tick=steps.append)
    assert [r.getMessage() for r in caplog.records if "is damaged, so the one before it is used" in r.getMessage()]
    assert len(steps) == 4  # five steps were saved, of which the last is lost
    whole, other = train(SPEC, episode, workspace)
    assert record.stages == whole.stages
    for name, value in other.deploy().state_dict().items():
        assert torch.equal(value, built.deploy().state_dict()[name])


@pytest.mark.parametrize("first", [3, 8, 13, 18])
def test_folds_go_on_where_they_were_stopped(tmp_path, monkeypatch, first):
    """Two folds of eight steps, then the training itself."""
    spec, workspace = replace(SPEC, select="leave-one-domain-out"), Workspace(DATA)
    episode, taken, step = workspace.episodes(spec)[0], [], ERM.step
    path, attempts = tmp_path / "run.safetensors", iter([first])

    def trained(saver=None):
        taken.clear()
        most = next(attempts, 99)

        def counted(self, batch):
            if len(taken) == most:
                raise Killed
            taken.append(step(self, batch))
            return taken[-1]

        monkeypatch.setattr(ERM, "step", counted)
        return train(spec, episode, workspace, saver=saver)

    with pytest.raises(Killed):
        trained(Saver(path, seconds=0.0))
    saver = Saver(path, seconds=0.0)
    record, built = trained(saver)
    left = len(taken)
    whole, other = trained()
    assert (record.stages, left) == (whole.stages, len(taken) - first)
    for name, value in other.deploy().state_dict().items():
        assert torch.equal(value, built.deploy().state_dict()[name])
    saver.finish()
    assert list(tmp_path.iterdir()) == []


def test_where_both_are_damaged_the_run_begins_anew_and_says_so(tmp_path, caplog):
    path = begun(tmp_path)[-1]
    saver = Saver(path)
    flipped(path)
    short(saver.previous)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert saver.load() is None
    assert "the run begins anew" in caplog.records[-1].getMessage()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_record_is_set_aside_and_its_run_done_again(tmp_path, caplog):
    workspace = Workspace(DATA, out=tmp_path)
    episode = workspace.episodes(SPEC)[0]
    first = run_episode(SPEC, episode, workspace)
    (path,) = (tmp_path / "records").glob("*.json")
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        again = run_episode(SPEC, episode, workspace)
    assert "set aside" in caplog.records[-1].getMessage()
    assert again.stages == first.stages
    assert [r.id for r in load(tmp_path)] == [first.id]
    assert path.with_name(f"{path.name}.damaged").exists()


def test_a_clock_that_is_set_back_changes_nothing(tmp_path, monkeypatch):
    workspace, episode, path = begun(tmp_path)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    record, _ = train(SPEC, episode, workspace, saver=Saver(path))
    assert record.stages == train(SPEC, episode, workspace)[0].stages
    assert record.cost["seconds"] > 0
