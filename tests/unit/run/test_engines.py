"""Engines: equal records with any number of processes, retries, sharing of resources, and options."""

import os
import sys
from dataclasses import asdict, replace
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest
import torch

from holdfast import BadInput, catalog, world
from holdfast.cli.options import make_engine
from holdfast.methods.erm import ERM
from holdfast.record import load
from holdfast.run import jobs as job_module
from holdfast.run import local as processes
from holdfast.run import resolve as resolving
from holdfast.run.execute import run_all
from holdfast.run.jobs import MAX_ATTEMPTS, Job, StepReporter, cache_inputs, worker_workspace
from holdfast.run.local import Local, parallel_runs, parse_jobs
from holdfast.run.progress import ProgressListener
from holdfast.run.ray import Ray
from holdfast.run.resolve import Request, resolve
from holdfast.run.settings import make_spec
from holdfast.run.template import cores, environment
from holdfast.run.workspace import Workspace


@pytest.fixture(scope="module")
def workspace():
    return Workspace(world("vector", "rotation", domains=3, size=24), cache=None)


@pytest.fixture(scope="module")
def specs(workspace):
    """Three specs that train and one, the third, that diverges."""
    spec = make_spec(workspace.dataset, steps=12, batch=4, settings={"encoder.hidden": [4], "every": 4})
    return [spec, replace(spec, seed=1), replace(spec, lr=1e30, optimizer="sgd"), replace(spec, method="coral")]


def run_specs(specs, workspace, out, **options):
    workspace = replace(workspace, out=out)
    return run_all(resolve(Request(specs=specs), workspace), workspace, **options)


@pytest.fixture(scope="module")
def sequential(workspace, specs, tmp_path_factory):
    """Records, diverged specs and folder of a sequential run."""
    diverged, out = [], tmp_path_factory.mktemp("sequential")
    records = run_specs(specs, workspace, out, on_divergence=lambda spec, error: diverged.append(spec))
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


def comparable(record):
    """A record without time and machine."""
    return {**asdict(record), "cost": None, "machine": None}


def test_parallel_runs_equal_sequential_runs_even_if_a_worker_is_killed(
    workspace, specs, sequential, tmp_path, monkeypatch
):
    begin, killed = processes._Worker.begin, []

    def begin_and_kill(worker, job):
        begin(worker, job)
        if not killed:
            killed.append(job.id)
            worker.process.kill()

    monkeypatch.setattr(processes._Worker, "begin", begin_and_kill)
    watch, diverged = Recorder(), []
    options = {"engine": Local(2), "watch": watch, "on_divergence": lambda spec, _: diverged.append(spec)}
    records = run_specs(specs, workspace, tmp_path, **options)
    expected, expected_diverged, out = sequential
    assert len(expected) == 9
    assert diverged == expected_diverged == [specs[2]] * 3
    assert list(map(comparable, records)) == list(map(comparable, expected))
    assert killed[0] in {record.id for record in records}
    assert watch.counts == (12, 0)
    assert sorted(watch.ended) == sorted(record.id for record in records)
    files = [[comparable(record) for record in load(folder)] for folder in (tmp_path, out)]
    assert files[0] == files[1]
    assert len(files[0]) == 9


def test_finished_runs_are_read_and_a_failed_run_raises(workspace, specs, sequential):
    records, _, out = sequential
    watch = Recorder()
    again = run_specs([specs[0], specs[3]], workspace, out, watch=watch, engine=SimpleNamespace(run=run_nothing))
    assert watch.counts == (6, 6)
    assert again == [record for record in records if record.spec["seed"] == 0]
    with pytest.raises(BadInput, match=r"diverged.*--lr"):
        run_specs([specs[2]], workspace, out)


def run_nothing(jobs, workspace, *, watch):
    assert not jobs
    yield from ()


@pytest.mark.slow
def test_closing_early_ends_all_workers_and_saves_the_run(workspace, specs, tmp_path, monkeypatch):
    workspace = replace(workspace, out=tmp_path)
    long = replace(specs[0], steps=1_000_000)
    jobs = [Job.of(spec, episode) for spec in (long, specs[0]) for episode in workspace.episodes(spec)]
    started = []
    build = processes._Worker.__init__

    def init(worker, shared, index, **options):
        build(worker, shared, index, **options)
        started.append(worker.process)

    monkeypatch.setattr(processes._Worker, "__init__", init)

    class Trains(Exception): ...

    class Stops(ProgressListener):
        def worker_steps(self, id, name, done, steps):
            if id == jobs[0].id:
                assert 0 < done < steps
                raise Trains

    with pytest.raises(Trains):
        list(Local(2).run([jobs[0], *jobs[3:]], workspace, watch=Stops()))
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)
    saved = {path.name.split(".")[0] for path in (tmp_path / "checkpoints").iterdir()}
    assert jobs[0].id in saved  # and a short one, if it was running at that moment


def test_run_whose_workers_always_die_is_given_up(workspace, specs, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "shared_template", lambda threads: None)
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(BadInput, match=f"died {MAX_ATTEMPTS} times.*memory.*--jobs"):
        run_specs(specs[:2], workspace, tmp_path, engine=Local(2))


@pytest.mark.parametrize("kind", ["vector", "image", "text", "graph"])
def test_workspace_can_be_sent_and_jobs_are_small(kind, tmp_path):
    data = world(kind, "none", domains=3, size=300)
    workspace = Workspace(data, cache=tmp_path, out=tmp_path)
    received = ForkingPickler.loads(ForkingPickler.dumps(workspace.for_worker(threads=1)))
    received_data = received.dataset
    assert received_data.raw.digest(received_data.rows_of("domain-1")) == data.raw.digest(data.rows_of("domain-1"))
    spec = make_spec(data)
    sent = ForkingPickler.dumps(Job.of(spec, workspace.episodes(spec)[0]))
    assert len(sent) < 2000  # the rows of an episode alone are larger


def test_workers_share_cores_and_gpus(workspace, tmp_path, monkeypatch):
    workspace = replace(workspace, out=tmp_path)
    shared = workspace.for_worker(threads=3)
    monkeypatch.setenv("HOLDFAST_SAVE_SECONDS", "7")
    assert workspace.for_worker(threads=3).worker.environment["HOLDFAST_SAVE_SECONDS"] == "7"
    assert environment(shared.worker.threads)["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    on_gpus = replace(shared, device=torch.device("cuda"))
    assert [processes._gpu(on_gpus, i)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == ["4", "6", "4"]
    assert processes._gpu(shared, 1) == {}
    if "sched_getaffinity" in dir(os):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
        assert cores() == 6


def test_shared_features_are_cached_before_workers_start(workspace, specs, tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(job_module, "assemble", lambda spec, episode, _: built.append((spec.encoder, spec.tune)))
    tuned = [replace(spec, tune=tune) for spec in specs for tune in ("frozen", "full")]
    jobs = [Job.of(spec, episode) for spec in tuned for episode in workspace.episodes(spec)]
    cache_inputs(jobs, workspace)
    assert built == []  # the workspace has no cache
    cache_inputs(jobs, Workspace(workspace.dataset, cache=tmp_path))
    assert built == [(specs[0].encoder, "frozen")]


class MyMethod(ERM):
    """A method of user code."""


@pytest.mark.slow
@pytest.mark.usefixtures("clean_catalog")
def test_registered_method_runs_in_workers(workspace, specs, tmp_path):
    name = catalog.register_method(MyMethod)
    records = run_specs([replace(specs[0], method=name)], workspace, tmp_path, engine=Local(2))
    expected = run_specs([specs[0]], workspace, tmp_path)
    assert [record.spec["method"] for record in records] == [name] * 3
    assert [record.stages for record in records] == [record.stages for record in expected]


@pytest.mark.usefixtures("clean_catalog")
def test_a_method_that_cannot_be_imported_is_an_error_with_workers(workspace, specs):
    class Hidden(ERM): ...

    jobs = resolve(Request(specs=[replace(specs[0], method=catalog.register_method(Hidden))]), workspace)
    with pytest.raises(BadInput, match=r"'hidden'.*cannot be imported"):
        worker_workspace(jobs, workspace, threads=1)


def test_steps_are_reported_at_intervals():
    now, reports = [0.0], []
    tick = StepReporter(reports.append, lambda: now[0], 2.0)
    for _ in range(10):
        now[0] += 0.5
        tick({})
    assert reports == [4, 8]


def test_engine_options():
    assert parse_jobs("auto") == Local(0)
    assert make_engine("local", None, None, None, None) == Local(1)
    assert make_engine("local", "3", None, None, None) == Local(3)
    assert make_engine("ray", None, "head:1", 0.5, 0.25) == Ray("head:1", 0.5, 0.25)
    for options, message in {
        ("rai", None, None, None, None): "rai.*ray",
        ("local", "many", None, None, None): "--jobs.*many",
        ("local", None, "head:1", None, None): "--address",
        ("local", None, None, None, 1.0): "--gpus",
        ("ray", "2", None, None, None): "--jobs",
        ("ray", None, None, -1.0, None): "--cpus.*-1",
    }.items():
        with pytest.raises(BadInput, match=message):
            make_engine(*options)


def test_missing_ray_raises_with_the_install_command(workspace, specs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'holdfast\[ray\]'"):
        run_specs(specs[:1], workspace, tmp_path, engine=Ray())


def test_at_most_one_run_per_core_and_at_least_one_per_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(processes, "cores", lambda: 8)
    assert parallel_runs(torch.device("cuda")) == parallel_runs(torch.device("cpu")) == 8
    monkeypatch.setattr(processes, "cores", lambda: 2)
    assert parallel_runs(torch.device("cuda")) == 3


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
