"""Working off jobs: finished runs, parts that do not fit, and checkpoints that are left over."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from holdfast import BadInput, world
from holdfast.engines.work import run_all
from holdfast.train import resolve as resolving
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Request, resolve
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace


@pytest.fixture(scope="module")
def specs(spec):
    """Three specs that train and one, the third, that diverges."""
    return [spec, replace(spec, seed=1), replace(spec, lr=1e30, optimizer="sgd"), replace(spec, method="coral")]


def run_specs(specs, workspace, out, **options):
    workspace = replace(workspace, out=out)
    return run_all(resolve(Request(specs=specs), workspace), workspace, **options)


@pytest.fixture(scope="module")
def sequential(workspace, specs, tmp_path_factory):
    """Records, diverged specs and folder of a sequential run."""
    diverged, out = [], tmp_path_factory.mktemp("sequential")
    records = run_specs(specs, workspace, out, on_failure=lambda job, _: diverged.append(job.spec))
    return records, diverged, out


class Recorder(ProgressListener):
    def __init__(self):
        self.begun, self.ended, self.counts = [], [], None

    def start(self, total, finished):
        self.counts = (total, finished)

    def begin(self, name, steps):
        self.begun.append((name, steps))

    def end(self, record):
        self.ended.append(record.id)


def test_finished_runs_are_read_and_a_failed_run_raises(workspace, specs, sequential):
    records, _, out = sequential
    watch = Recorder()
    again = run_specs([specs[0], specs[3]], workspace, out, watch=watch, engine=SimpleNamespace(run=run_nothing))
    assert watch.counts == (6, 6)
    assert again == [record for record in records if record.spec["seed"] == 0]
    with pytest.raises(BadInput, match=r"diverged.*--lr"):
        run_specs([specs[2]], workspace, out)


def run_nothing(next_job, workspace, *, watch):
    assert next_job() is None
    yield from ()


IMAGES = {"encoder.size": 32}


@pytest.mark.parametrize(
    ("settings", "added", "message"),
    [
        ({"encoder": "resnet18", **IMAGES}, {"neck": "experts"}, "ResNet"),
        ({"encoder": "cnn"}, {"neck": "memory", "neck_args": {"place": "tokens"}}, "CNN"),
        ({"encoder": "vit-tiny", **IMAGES}, {"neck": "experts", "neck_args": {"top": 9, "count": 6}}, "9"),
        ({"encoder": "vit-tiny", **IMAGES}, {"neck": "wide", "neck_args": {"at": [99]}}, r"\[99\]"),
        ({"encoder": "vit-tiny", "tune": "frozen", **IMAGES}, {"neck": "experts"}, "frozen"),
        ({"encoder": "cnn"}, {"neck": "param", "neck_args": {"heads": 7}}, "7"),
        ({"encoder": "cnn"}, {"method": "replay", "method_args": {"batch": 0}}, "0"),
    ],
)
def test_parts_that_do_not_fit_raise_before_any_run(settings, added, message, tmp_path):
    workspace = Workspace(world("image", "none", domains=3, size=4, classes=2, seed=0), cache=tmp_path / "cache")
    plain, watch = make_spec(workspace.dataset, steps=1, batch=2, settings=settings), Recorder()
    with pytest.raises(BadInput, match=message):
        run_specs([plain, replace(plain, **added)], workspace, tmp_path, watch=watch)
    assert watch.begun == []
    assert not (tmp_path / "records").exists()


def test_heads_that_divide_the_width_of_the_encoder_are_accepted(workspace, specs, tmp_path):
    added = {"neck": "param", "neck_args": {"heads": 7}, "encoder_args": {"hidden": [14]}}
    assert len(run_specs([replace(specs[0], **added)], workspace, tmp_path)) == 3


def test_finished_runs_are_not_built_again(workspace, specs, tmp_path, monkeypatch):
    spec = replace(specs[0], neck="projection")
    run_specs([spec], workspace, tmp_path)
    monkeypatch.setattr(resolving, "try_build", lambda *_: pytest.fail("it was built"))
    run_specs([spec], workspace, tmp_path)


def test_checkpoints_that_a_killed_process_left_are_removed(workspace, specs, tmp_path):
    records = run_specs([specs[0]], workspace, tmp_path)
    folder = tmp_path / "checkpoints"
    folder.mkdir(exist_ok=True)
    kept = folder / "0123456789abcdef.safetensors"  # of a run that is not finished
    left = [folder / f"{records[0].id}.safetensors{end}" for end in ("", ".previous")]
    for path in (kept, *left):
        path.write_bytes(b"x")
    assert run_specs([specs[0]], workspace, tmp_path) == records
    assert list(folder.iterdir()) == [kept]
