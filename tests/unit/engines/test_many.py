import os
import sys
from dataclasses import asdict, replace
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest
import torch

from holdfast import BadInput, world
from holdfast.cli.options import make_engine
from holdfast.record import load
from holdfast.run import jobs as job_module
from holdfast.run import local as processes
from holdfast.run import many
from holdfast.run.assemble import Workspace
from holdfast.run.jobs import TRIES, Counted, Job, Kit, share_features
from holdfast.run.local import Local, cores, local
from holdfast.run.many import run_all
from holdfast.run.progress import ProgressListener
from holdfast.run.ray import Ray
from holdfast.run.settings import make_spec
from holdfast.run.train import episodes


@pytest.fixture(scope="module")
def workspace():
    return Workspace(world("vector", "rotation", domains=3, size=24), cache=None)


@pytest.fixture(scope="module")
def specs(workspace):
    """Three that train and one, the third, that diverges."""
    made = make_spec(workspace.dataset, steps=12, batch=4, settings={"encoder.hidden": [4], "every": 4})
    return [made, replace(made, seed=1), replace(made, lr=1e30, optimizer="sgd"), replace(made, method="coral")]


@pytest.fixture(scope="module")
def in_turn(workspace, specs, tmp_path_factory):
    lost = []
    out = tmp_path_factory.mktemp("turn")
    return run_all(specs, workspace, out, diverged=lambda spec, error: lost.append(spec)), lost, out


class Told(ProgressListener):
    def __init__(self):
        self.begun, self.ended, self.counts = [], [], None

    def start(self, total, finished):
        self.counts = (total, finished)

    def begin(self, name, steps):
        self.begun.append((name, steps))

    def end(self, record):
        self.ended.append(record.id)


def same(record):
    """A record without time and machine."""
    return {**asdict(record), "cost": None, "machine": None}


def test_several_at_once_write_what_one_after_another_writes_though_a_worker_is_killed(
    workspace, specs, in_turn, tmp_path, monkeypatch
):
    begin, killed = processes._Worker.begin, []

    def begin_and_kill(worker, job):
        begin(worker, job)
        if not killed:
            killed.append(job.id)
            worker.process.kill()

    monkeypatch.setattr(processes._Worker, "begin", begin_and_kill)
    watch, lost = Told(), []
    found = run_all(
        specs, workspace, tmp_path, engine=Local(2), watch=watch, diverged=lambda spec, _: lost.append(spec)
    )
    whole, lost_in_turn, out = in_turn
    assert len(whole) == 9
    assert lost == lost_in_turn == [specs[2]] * 3
    assert list(map(same, found)) == list(map(same, whole))
    assert killed[0] in {record.id for record in found}
    assert watch.counts == (12, 0)
    assert sorted(watch.ended) == sorted(record.id for record in found)
    files = [[same(record) for record in load(folder)] for folder in (tmp_path, out)]
    assert files[0] == files[1]
    assert len(files[0]) == 9


def test_what_is_done_is_read_and_a_run_that_fails_ends_the_others(workspace, specs, in_turn):
    whole, _, out = in_turn
    watch = Told()
    again = run_all([specs[0], specs[3]], workspace, out, watch=watch, engine=SimpleNamespace(run=nothing))
    assert watch.counts == (6, 6)
    assert again == [record for record in whole if record.spec["seed"] == 0]
    with pytest.raises(BadInput, match="lower --lr"):
        run_all([specs[2]], workspace, out)


def nothing(jobs, workspace, out, *, watch, analyse):
    assert not jobs
    yield from ()


@pytest.mark.slow
def test_closed_early_no_worker_is_left_and_the_run_is_saved(workspace, specs, tmp_path, monkeypatch):
    long = replace(specs[0], steps=1_000_000)
    jobs = [Job.of(spec, episode, tmp_path) for spec in (long, specs[0]) for episode in episodes(spec, workspace)]
    made = []
    build = processes._Worker.__init__

    def kept(worker, kit, at):
        build(worker, kit, at)
        made.append(worker.process)

    monkeypatch.setattr(processes._Worker, "__init__", kept)

    class Trains(Exception): ...

    class Stops(ProgressListener):
        def worker_steps(self, id, name, done, steps):
            if id == jobs[0].id:
                assert 0 < done < steps
                raise Trains

    with pytest.raises(Trains):
        list(Local(2).run([jobs[0], *jobs[3:]], workspace, tmp_path, watch=Stops(), analyse=()))
    assert len(made) == 2
    assert all(process.poll() is not None for process in made)
    saved = {path.name.split(".")[0] for path in (tmp_path / "checkpoints").iterdir()}
    assert jobs[0].id in saved  # and a short one, if it was under way just then


def test_a_run_that_ends_every_worker_is_given_up_with_a_mend(workspace, specs, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(BadInput, match=f"ended its worker {TRIES} times: it may need more memory"):
        run_all(specs[:2], workspace, tmp_path, engine=Local(2))


@pytest.mark.parametrize("kind", ["vector", "image", "text", "graph"])
def test_a_kit_of_any_kind_of_data_arrives_and_a_job_stays_small(kind, tmp_path):
    data = world(kind, "none", domains=3, size=300)
    workspace = Workspace(data, cache=tmp_path)
    kit = ForkingPickler.loads(ForkingPickler.dumps(Kit.of(workspace, tmp_path, (), threads=1)))
    there = kit.workspace().dataset
    assert there.raw.digest(there.rows_of("domain-1")) == data.raw.digest(data.rows_of("domain-1"))
    spec = make_spec(data)
    sent = ForkingPickler.dumps(Job.of(spec, next(episodes(spec, workspace)), tmp_path))
    assert len(sent) < 2000  # the rows of an episode alone are more


def test_workers_share_the_cores_and_the_gpus(workspace, tmp_path, monkeypatch):
    kit = Kit.of(workspace, tmp_path, (), threads=3)
    monkeypatch.setenv("HOLDFAST_SAVE_SECONDS", "7")
    assert Kit.of(workspace, tmp_path, (), threads=3).environment["HOLDFAST_SAVE_SECONDS"] == "7"
    assert processes._environment(kit, 0)["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    on_gpus = replace(kit, device="cuda")
    assert [processes._environment(on_gpus, at)["CUDA_VISIBLE_DEVICES"] for at in range(3)] == ["4", "6", "4"]
    assert processes._environment(kit, 1)["CUDA_VISIBLE_DEVICES"] == "4,6"
    if "sched_getaffinity" in dir(os):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
        assert cores() == 6


def test_features_that_runs_share_are_computed_before_they_part(workspace, specs, tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(
        job_module, "assemble", lambda spec, episode, workspace: built.append((spec.encoder, spec.tune))
    )
    every = [replace(spec, tune=tune) for spec in specs for tune in ("frozen", "full")]
    jobs = [Job.of(spec, episode, tmp_path) for spec in every for episode in episodes(spec, workspace)]
    share_features(jobs, workspace)
    assert built == []  # nothing is kept
    share_features(jobs, Workspace(workspace.dataset, cache=tmp_path))
    assert built == [(specs[0].encoder, "frozen")]


def test_steps_are_told_now_and_then():
    now, told = [0.0], []
    tick = Counted(told.append, lambda: now[0], 2.0)
    for _ in range(10):
        now[0] += 0.5
        tick({})
    assert told == [4, 8]


def test_what_the_options_mean():
    assert local("auto") == Local(0)
    assert make_engine("local", None, None, None, None) == Local(1)
    assert make_engine("local", "3", None, None, None) == Local(3)
    assert make_engine("ray", None, "head:1", 0.5, 0.25) == Ray("head:1", 0.5, 0.25)
    for given, said in {
        ("rai", None, None, None, None): "did you mean 'ray'",
        ("local", "many", None, None, None): "--jobs takes a number",
        ("local", None, "head:1", None, None): "--address is for a cluster",
        ("local", None, None, None, 1.0): "--gpus is for a cluster",
        ("ray", "2", None, None, None): "--jobs is for runs on this machine",
        ("ray", None, None, -1.0, None): "--cpus must be at least 0",
    }.items():
        with pytest.raises(BadInput, match=said):
            make_engine(*given)


def test_without_ray_one_sentence_says_what_to_install(workspace, specs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'holdfast\[ray\]'"):
        run_all(specs[:1], workspace, tmp_path, engine=Ray())


def test_a_gpu_has_one_run_at_a_time(monkeypatch):
    from holdfast.run.local import places

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert places(torch.device("cuda")) == 3
    assert places(torch.device("cpu")) == cores()


IMAGES = {"encoder.size": 32}


@pytest.mark.parametrize(
    ("settings", "added", "told"),
    [
        ({"encoder": "resnet18", **IMAGES}, {"neck": "experts"}, "ResNet has no stack of layers to put a part into"),
        ({"encoder": "cnn"}, {"neck": "memory", "neck_args": {"place": "tokens"}}, "CNN has no stack of layers"),
        (
            {"encoder": "vit-tiny", **IMAGES},
            {"neck": "experts", "neck_args": {"top": 9, "count": 6}},
            "at most all experts, not 9 of 6",
        ),
        (
            {"encoder": "vit-tiny", **IMAGES},
            {"neck": "wide", "neck_args": {"at": [99]}},
            r"from 0 to 11, .* not \[99\]",
        ),
        ({"encoder": "vit-tiny", "tune": "frozen", **IMAGES}, {"neck": "experts"}, "frozen encoder, have no layers"),
        ({"encoder": "cnn"}, {"neck": "param", "neck_args": {"heads": 7}}, "7"),
        ({"encoder": "cnn"}, {"method": "replay", "method_args": {"batch": 0}}, "must be at least 1, not 0"),
    ],
)
def test_parts_that_do_not_go_together_are_told_before_any_run(settings, added, told, tmp_path):
    workspace = Workspace(world("image", "none", domains=3, size=4, classes=2, seed=0), cache=tmp_path / "cache")
    plain, watch = make_spec(workspace.dataset, steps=1, batch=2, settings=settings), Told()
    with pytest.raises(BadInput, match=told):
        run_all([plain, replace(plain, **added)], workspace, tmp_path, watch=watch)
    assert watch.begun == []
    assert not (tmp_path / "records").exists()


def test_heads_that_divide_the_width_of_the_encoder_are_not_refused(workspace, specs, tmp_path):
    added = {"neck": "param", "neck_args": {"heads": 7}, "encoder_args": {"hidden": [14]}}
    assert len(run_all([replace(specs[0], **added)], workspace, tmp_path)) == 3


def test_what_is_done_is_not_built_again(workspace, specs, tmp_path, monkeypatch):
    spec = replace(specs[0], neck="projection")
    run_all([spec], workspace, tmp_path)
    monkeypatch.setattr(many, "try_build", lambda *_: pytest.fail("it was built"))
    run_all([spec], workspace, tmp_path)
