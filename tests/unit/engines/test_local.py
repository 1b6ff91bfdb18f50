"""Engine for this machine: equal records with any number of processes, lazy starts, sharing of resources, options."""

import os
import sys
from dataclasses import asdict, replace
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

from holdfast import BadInput, catalog, world
from holdfast.cli.options import make_engine
from holdfast.core import forking
from holdfast.core.stopping import Interrupted, request_stop
from holdfast.engines import pool
from holdfast.engines import work as job_module
from holdfast.engines.gpu import gpu_variable, max_workers
from holdfast.engines.ray import Ray
from holdfast.engines.work import InputCache, Local, StepReporter, is_small, parse_jobs, unimportable
from holdfast.methods.erm import ERM
from holdfast.record import RunRecord, load
from holdfast.train.progress import ProgressListener
from holdfast.train.run import Failed, Job
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.tables import table_world
from tests.unit.engines import faulty
from tests.unit.engines.conftest import iterated


class MyMethod(ERM):
    """A method of user code."""


def comparable(record):
    """A record without time and machine."""
    return {**asdict(record), "cost": None, "machine": None}


@pytest.mark.usefixtures("clean_catalog")
def test_runs_in_workers_equal_runs_in_this_process_even_if_a_worker_is_killed(
    workspace, spec, jobs_of, run_jobs, tmp_path, monkeypatch
):
    begin, killed = pool._Worker.begin, []

    def begin_and_kill(worker, job, **options):
        begin(worker, job, **options)
        if not killed:
            killed.append(job.id)
            worker.process.end()

    monkeypatch.setattr(pool._Worker, "begin", begin_and_kill)
    own = replace(spec, method=catalog.register_method(MyMethod))
    jobs = jobs_of(spec, own, replace(spec, lr=1e30, optimizer="sgd"))
    watch = Recorder()
    outcomes = run_jobs(Local(2), jobs, tmp_path / "workers", watch=watch)
    expected = run_jobs(Local(1), jobs, tmp_path / "here")
    assert killed[0] in outcomes
    records = [outcome for outcome in expected.values() if isinstance(outcome, RunRecord)]
    assert len(records) == 6
    assert [outcomes[record.id].stages for record in records] == [record.stages for record in records]
    assert all(outcomes[id] == outcome for id, outcome in expected.items() if not isinstance(outcome, RunRecord))
    files = [list(map(comparable, load(tmp_path / name))) for name in ("workers", "here")]
    assert files[0] == files[1]
    assert sorted(watch.begun) == sorted(job.name for job in jobs if job.id in {record.id for record in records})
    assert set(watch.steps) == {job.id for job in jobs}


class Recorder(ProgressListener):
    def __init__(self):
        self.begun, self.steps = [], {}

    def begin(self, name, steps):
        self.begun.append(name)

    def worker_steps(self, id, name, done, steps):
        self.steps[id] = done


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_interrupted_run_is_saved_and_no_worker_is_left(at_once, workspace, spec, jobs_of, tmp_path, monkeypatch):
    jobs, ended = jobs_of(replace(spec, steps=1_000_000)), []
    end = pool._Worker.end
    monkeypatch.setattr(pool._Worker, "end", lambda worker: ended.append(end(worker)))

    class Stops(ProgressListener):
        def step(self, metrics):
            request_stop()

        def worker_steps(self, id, name, done, steps):
            assert 0 < done < steps
            request_stop()

    own = replace(workspace, out=tmp_path)
    with pytest.raises(Interrupted):
        list(Local(at_once).run(iterated(jobs), own, watch=Stops()))
    assert len(ended) == (0 if at_once == 1 else 2)
    saved = {path.name.split(".")[0] for path in (tmp_path / "checkpoints").iterdir()}
    assert saved & {job.id for job in jobs}


def test_a_run_whose_workers_always_die_is_given_up(jobs_of, spec, run_jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "shared_server", lambda worker: None)
    monkeypatch.setattr(sys, "executable", "false")
    outcomes = run_jobs(Local(2), jobs_of(spec)[:2], tmp_path)
    assert {outcome.kind for outcome in outcomes.values()} == {"killed"}
    assert all("ended with exit code 1" in outcome.cause for outcome in outcomes.values())


def test_the_next_job_may_depend_on_an_outcome(workspace, spec, jobs_of, tmp_path):
    first, second, third = jobs_of(spec)
    waiting, seen = [first], []
    runs = Local(2).run(lambda: waiting.pop() if waiting else None, replace(workspace, out=tmp_path), watch=Recorder())
    for job, _ in runs:
        seen.append(job.id)
        waiting += {first.id: [second], second.id: [third]}.get(job.id, [])
    assert seen == [first.id, second.id, third.id]


@pytest.mark.usefixtures("clean_catalog")
def test_methods_that_only_this_process_has_run_here(spec, jobs_of, run_jobs, tmp_path):
    class Hidden(ERM):
        """Not importable."""

    hidden = replace(spec, method=catalog.register_method(Hidden))
    assert "'hidden'" in unimportable(hidden)
    assert unimportable(spec) == ""
    watch = Recorder()
    outcomes = run_jobs(Local(2), jobs_of(hidden), tmp_path, watch=watch)
    assert all(isinstance(outcome, RunRecord) for outcome in outcomes.values())
    assert watch.steps == {}


def test_a_single_run_starts_no_process(spec, jobs_of, run_jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "_Worker", lambda *_, **__: pytest.fail("a worker was started"))
    assert len(run_jobs(Local(2), jobs_of(spec)[:1], tmp_path)) == 1


def test_large_runs_take_turns_by_default(workspace, spec, jobs_of, run_jobs, tmp_path, monkeypatch):
    job = jobs_of(spec)[0]
    assert is_small(job.spec, workspace)
    assert Local(0).at_once(job.spec, workspace) == Local(0).workers(workspace.device)
    images = Workspace(world("image", "none", domains=3, size=4, classes=2, seed=0), cache=tmp_path)
    tuned = make_spec(images.dataset, settings={"encoder": "cnn", "tune": "full"})
    assert not is_small(tuned, images)
    assert (Local(0).at_once(tuned, images), Local(3).at_once(tuned, images)) == (1, 3)
    assert is_small(replace(tuned, tune="frozen"), images)
    texts = Workspace(table_world(domains=3, size=8, classes=2, seed=0, kind="mixed"), cache=None)
    assert is_small(make_spec(texts.dataset, settings={"encoder": "mixed"}), texts)
    assert not is_small(make_spec(texts.dataset, settings={"encoder": "mixed", "encoder.base": "minilm"}), texts)
    monkeypatch.setattr(job_module, "is_small", lambda *_: False)
    monkeypatch.setattr(pool, "_Worker", lambda *_, **__: pytest.fail("a worker was started"))
    assert len(run_jobs(Local(0), jobs_of(spec), tmp_path)) == 3


@pytest.mark.usefixtures("clean_catalog")
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("short", [True, False])
def test_threads_of_all_runs_are_at_most_the_cores(at_once, short, spec, jobs_of, run_jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "cores", lambda: 4)
    method = catalog.register_method(faulty.CountsThreads)
    jobs = jobs_of(replace(spec, method=method, steps=4 if short else 1))[:2]
    for outcome in run_jobs(Local(at_once), jobs, tmp_path).values():
        last = outcome.stages[-1]["history"][-1]
        assert max(last["torch"], last["most"]) <= 4 // at_once
        assert last["torch"] == 1 or not short  # threads would wait for one another
        assert last["omp"] == 2 or at_once == 1
        assert last["torch"] == 2 or short or at_once == 1


def test_cores_are_limited_by_affinity_and_quota(monkeypatch, tmp_path):
    monkeypatch.setattr(forking, "CPU_LIMIT", tmp_path / "cpu.max")
    if sys.platform == "linux":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
        assert forking.cores() == 6
        for text, expected in {"max 100000": 6, "250000 100000": 3, "10000 100000": 1, "900000 100000": 6}.items():
            (tmp_path / "cpu.max").write_text(text)
            assert forking.cores() == expected


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
    monkeypatch.setenv("HOLDFAST_SAVE_SECONDS", "7")
    assert workspace.for_worker(threads=3).worker.environment["HOLDFAST_SAVE_SECONDS"] == "7"
    assert forking.environment(3)["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    gpu = torch.device("cuda")
    assert [gpu_variable(gpu, i)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == ["4", "6", "4"]
    assert gpu_variable(torch.device("cpu"), 1) == {}


def test_one_worker_per_core_at_least_one_per_gpu_and_at_most_15(monkeypatch):
    cpu, gpu = map(torch.device, ("cpu", "cuda"))
    monkeypatch.setattr("holdfast.engines.work.max_workers", max_workers)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for count, expected in {8: 8, 2: 3, 99: 45}.items():
        monkeypatch.setattr("holdfast.engines.gpu.cores", lambda count=count: count)
        assert (max_workers(cpu), max_workers(gpu)) == (count, expected)
        assert Local(0).workers(gpu) == expected
    assert Local(5).workers(gpu) == 5


def test_inputs_are_cached_once_per_encoder(workspace, spec, jobs_of, tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(job_module, "assemble", lambda spec, episode, _: built.append((spec.encoder, spec.tune)))
    jobs = jobs_of(*(replace(spec, tune=tune, seed=seed) for seed in (0, 1) for tune in ("frozen", "full")))
    for folder, expected in ((None, []), (tmp_path, [(spec.encoder, "frozen")])):
        cache = InputCache(Workspace(workspace.dataset, cache=folder))
        assert [cache.fill(job) for job in jobs] == [None] * len(jobs)
        assert built == expected


def test_an_encoder_that_fails_affects_its_runs_only(spec, jobs_of, run_jobs, tmp_path):
    frozen = replace(spec, tune="frozen", encoder_args={"layers": 3})
    jobs = jobs_of(frozen, spec)
    outcomes = run_jobs(Local(2), jobs, tmp_path, cache=tmp_path / "cache")
    failed = [outcomes[job.id] for job in jobs[:3]]
    assert all(isinstance(each, Failed) and each.kind == "input" and "layers" in each.cause for each in failed)
    assert all(isinstance(outcomes[job.id], RunRecord) for job in jobs[3:])


def test_inputs_are_computed_once_while_other_jobs_run(spec, jobs_of, run_jobs, tmp_path, monkeypatch):
    begun, begin = [], pool._Worker.begin

    def begin_and_note(worker, job, *, fills=False, **options):
        begun.append("fill" if fills else job.spec.tune)
        begin(worker, job, fills=fills, **options)

    monkeypatch.setattr(pool._Worker, "begin", begin_and_note)
    jobs = jobs_of(replace(spec, tune="frozen"), replace(spec, tune="full"))
    outcomes = run_jobs(Local(2), jobs, tmp_path / "workers", cache=tmp_path / "cache")
    assert begun[:2] == ["fill", "full"]
    assert sorted(begun) == ["fill", *["frozen"] * 3, *["full"] * 3]
    expected = run_jobs(Local(1), jobs, tmp_path / "here", cache=tmp_path / "other")
    assert [outcomes[job.id].stages for job in jobs] == [expected[job.id].stages for job in jobs]


def test_steps_are_reported_at_intervals(monkeypatch):
    now, reports = [0.0], []
    monkeypatch.setattr(job_module.time, "monotonic", lambda: now[0])
    tick = StepReporter(reports.append, 2.0)
    for _ in range(10):
        now[0] += 0.5
        tick({})
    assert reports == [4, 8]


def test_engine_options():
    assert parse_jobs("auto") == Local(0)
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


def test_missing_ray_raises_with_the_install_command(workspace, jobs_of, spec, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'holdfast\[ray\]'"):
        list(Ray().run(iterated(jobs_of(spec)), replace(workspace, out=tmp_path), watch=ProgressListener()))
