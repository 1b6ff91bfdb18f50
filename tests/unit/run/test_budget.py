"""Time budgets: durations, what is left out first, decisions by measured durations, and the time left."""

import time
from dataclasses import replace

import pytest
from holdfast.run.budget import Allowance, Budget, Unit, left_out_note, parse_budget, units_to_drop
from holdfast.run.estimate import Estimate, _encoding_seconds, estimate
from holdfast.run.timing import Timing, configuration, format_seconds

from holdfast import BadInput, compare
from holdfast.cli import console
from holdfast.data.synthetic import world
from holdfast.methods.logistic import Logistic
from holdfast.nn.backbones.text import TextEncoder
from holdfast.run import estimate as estimation
from holdfast.run import schedule as scheduling
from holdfast.run.jobs import Job, cache_inputs
from holdfast.run.progress import ProgressListener
from holdfast.run.resolve import Request, resolve
from holdfast.run.workspace import Workspace
from holdfast.spec import Spec
from tests.tiny import tiny_bert
from tests.unit.report.fake_records import record as fake_record

OPTIONS = {"steps": 4, "batch": 4, "settings": {"encoder.hidden": [4]}}
SMALL = {"device": "cpu", "combinations": False, **OPTIONS}


@pytest.fixture(scope="module")
def data():
    return world("vector", "none", domains=3, size=24, classes=2, seed=0)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def spec(method, seed=0, **fields):
    return Spec(data="d", fingerprint="f", method=method, seed=seed, **fields)


def jobs_of(*methods, seeds=2, targets=2):
    specs = [spec(method, seed) for method in methods for seed in range(seeds)]
    return [Job(each, f"t{t}", f"{each.method}-{each.seed}-{t}") for each in specs for t in range(targets)]


def test_durations_are_parsed_and_written():
    assert [parse_budget(text) for text in ("90s", "2m", "1.5h", "none")] == [90, 120, 5400, None]
    for text in ("", "5", "0m", "2 days", "-1m"):
        with pytest.raises(BadInput, match="90s, 2m or 1h"):
            parse_budget(text)
    assert [format_seconds(value) for value in (4.4, 60, 200, 7500)] == ["4 s", "1 min", "3 min 20 s", "2 h 5 min"]


def test_time_for_the_model_is_that_of_all_seeds_of_the_core():
    expected = Estimate(runs={configuration(job): 10.0 for job in jobs_of("erm", "hma")})
    seconds = [scheduling._model_seconds(jobs_of("erm", "hma", seeds=seeds), expected) for seeds in (1, 3)]
    assert seconds == [10, 30]  # an ensemble has one member per seed; hma is not part of it


def test_expensive_runs_are_dropped_first_the_core_last_and_simple_baselines_never():
    costs = {"majority": 1, "erm": 10, "coral": 5, "hma": 100}
    units = [
        Unit(f"{name}{seed}", name, place, seed, name in ("majority", "erm"), cost, simple=name == "majority")
        for place, (name, cost) in enumerate(costs.items())
        for seed in range(2)
    ]
    drops = [units_to_drop(units, available) for available in (232, 231, 131, 126, 26, 16, 11, 0)]
    order = ["hma1", "coral1", "hma0", "erm1", "coral0", "majority1", "erm0"]
    assert [len(dropped) for dropped in drops] == list(range(8))
    assert all(dropped == set(order[: len(dropped)]) for dropped in drops)
    assert [unit.key for unit in sorted(units, key=lambda unit: unit.priority)][::-1] == [*order, "majority0"]


def test_simple_baselines_run_after_the_end_of_the_budget_and_without_encoding():
    clock = Clock()
    jobs = jobs_of("majority", "logistic", "erm", seeds=1)
    sparse = [job.with_spec(replace(job.spec, encoder="tfidf", tune="full")) for job in jobs_of("logistic", seeds=1)]
    frozen = [job.with_spec(replace(job.spec, tune="frozen")) for job in jobs]
    timing = Timing(encoding=100.0, clock=clock)
    allowance = Allowance(Budget(60, 0.0, clock), [*frozen, *sparse], timing)
    order = allowance.order([*frozen, *sparse])
    assert {(job.spec.method, job.spec.tune) for job in order} == {("majority", "frozen"), ("logistic", "full")}
    assert not timing.encoding
    clock.now = 61.0
    assert all(allowance.keep(job) for job in order)
    assert {spec.method for spec in allowance.left_out()} == {"logistic", "erm"}


def test_measured_durations_decide_and_nothing_begins_after_the_end():
    clock, jobs = Clock(), jobs_of("erm", "coral", "hma")
    timing = Timing(runs={configuration(job): 5.0 for job in jobs}, clock=clock)
    timing.expect(jobs)
    allowance = Allowance(Budget(45, 0.0, clock), jobs, timing, reserve=5.0)
    order = allowance.order(jobs)
    assert [job.id for job in order[:6:2]] == ["erm-0-0", "coral-0-0", "hma-0-0"]
    begun = []
    for job in order:
        if allowance.keep(job):
            begun.append(job.id)
            timing.begin(job)
            clock.now += 1.0 if job.spec.method == "erm" else 12.0 if job.spec.method == "hma" else 5.0
            timing.end(job)
        else:
            timing.skip(job)
    # 2 + 10 + 24 seconds of first seeds: the second seed of erm still fits, that of coral and hma does not
    assert begun == ["erm-0-0", "erm-0-1", "coral-0-0", "coral-0-1", "hma-0-0", "hma-0-1", "erm-1-0", "erm-1-1"]
    assert {(each.method, each.seed) for each in allowance.left_out()} == {("coral", 1), ("hma", 1)}
    note = left_out_note(allowance.left_out(), [job.spec for job in jobs[::2]], "the budget of 45 s")
    assert "seed 1 of coral, hma" in note
    assert clock.now <= 45
    clock.now = 46.0
    late = Allowance(Budget(45, 0.0, clock), jobs, timing)
    assert [late.keep(job) for job in jobs[:5]] == [True, True, False, False, False]  # only the first unit


def test_dropped_units_return_if_runs_are_faster_than_estimated():
    clock, jobs = Clock(), jobs_of("erm", "coral", seeds=1)
    timing = Timing(runs={configuration(job): 50.0 for job in jobs}, clock=clock)
    allowance = Allowance(Budget(101, 0.0, clock), jobs, timing)
    queue = allowance.order(jobs)
    for job in queue:
        if allowance.keep(job):
            timing.begin(job)
            clock.now += 1.0
            timing.end(job)
    assert [job.spec.method for job in allowance.retry(queue)] == []  # 100 of 99 seconds
    timing.estimated = dict.fromkeys(timing.estimated, 20.0)
    assert [job.spec.method for job in allowance.retry(queue)] == ["coral", "coral"]


def test_time_left_is_the_sum_over_methods_and_includes_encoding():
    clock, jobs = Clock(), jobs_of("erm", "hma", seeds=1)
    timing = Timing(runs={configuration(job): 10.0 for job in jobs}, encoding=30.0, afterwards=2.0, clock=clock)
    timing.expect(jobs)
    assert timing.left() == 72
    timing.encoded(100, 300)
    clock.now = 10.0
    timing.encoded(200, 300)
    assert timing.left() == 10 + 40 + 2
    timing.all_encoded()
    timing.begin(jobs[0])
    clock.now += 2.0
    assert timing.left() == 40 - 2 + 2
    timing.end(jobs[0])
    assert timing.left() == 2 + 20 + 2  # erm is measured now, hma is not
    assert Timing().left() == 0
    unknown = Timing()
    unknown.expect(jobs)
    assert unknown.left() is None


def test_estimate_probes_every_configuration_and_uses_records(data, tmp_path):
    workspace = Workspace(data, cache=None, out=tmp_path)
    jobs = resolve(Request(methods=["erm", "coral"], seeds=[0], baselines=True, **OPTIONS), workspace)
    assert estimate(jobs, workspace) is None  # too short to be worth a probe
    probed = estimate(jobs, workspace, always=True)
    assert probed is not None
    assert set(probed.runs) == {configuration(job) for job in jobs}
    assert all(0 < seconds < 60 for seconds in probed.runs.values())
    record = replace(fake_record("erm", 0, {}), spec=replace(jobs[-1].spec, seed=3).json(), cost={"seconds": 123.0})
    recorded = estimate(jobs, workspace, [record], always=True)
    assert recorded is not None
    assert recorded.runs[configuration(jobs[-1])] == 123
    assert set(recorded.runs) == set(probed.runs)


def test_first_calls_and_overhead_do_not_count(tmp_path, monkeypatch):
    calls, fit = [], Logistic.fit

    def slow_at_first(self, designs):
        calls.append(sum(len(design.y) for design in designs))
        time.sleep(1.5 if len(calls) == 1 else 0.0)
        return fit(self, designs)

    monkeypatch.setattr(Logistic, "fit", slow_at_first)
    data = world("vector", "none", domains=3, size=150, classes=2, seed=0)
    workspace = Workspace(data, cache=None, out=tmp_path)
    jobs = resolve(Request(methods=["logistic"], seeds=[0]), workspace)
    probed = estimate(jobs, workspace, always=True)
    assert probed is not None
    assert probed.runs[configuration(jobs[0])] < 1.5
    assert calls[1] > calls[0]  # on more rows, so that little is extrapolated


def test_encoding_is_estimated_for_the_rows_without_features(tmp_path, monkeypatch):
    workspace = Workspace(world("text", "vocabulary", domains=3, size=40, classes=2, seed=0), cache=tmp_path / "cache")
    request = Request(methods=["erm"], encoder=f"hf:{tiny_bert(tmp_path)}", tune="frozen", seeds=[0], baselines=True)
    jobs = resolve(request, workspace)
    measured = []
    monkeypatch.setattr(estimation, "_seconds_per_row", lambda encoder, small: measured.append(encoder) or 0.5)
    probed = estimate(jobs, workspace, always=True)
    assert probed is not None
    assert probed.encoding == 0.5 * 120
    cache_inputs(jobs, workspace)
    monkeypatch.setattr(TextEncoder, "forward", None)  # nothing is encoded again
    again = estimate(jobs, workspace, always=True)
    assert again is not None
    assert (again.encoding, len(measured)) == (0.0, 1)
    majority = [job for job in jobs if job.spec.method == "majority"]
    bare = Workspace(workspace.dataset, cache=tmp_path / "other")
    assert _encoding_seconds(majority, bare, bare) == 0.0


def test_a_budget_is_reported_and_a_larger_one_continues(data, tmp_path, monkeypatch):
    notes = []
    listener = ProgressListener()
    listener.note = notes.append
    slow = lambda jobs, *_, **__: Estimate(0.0, {configuration(job): 1000.0 for job in jobs})  # noqa: E731
    monkeypatch.setattr(scheduling, "estimate", slow)
    keywords = {"methods": ["erm", "coral"], "seeds": 2, "baselines": False, "out": tmp_path, **SMALL}
    first = compare(data, budget="90s", watch=listener, **keywords)
    assert {(r.spec["method"], r.spec["seed"]) for r in first.records} == {("erm", 0), ("erm", 1)}  # erm is fast
    assert any("estimated time" in note for note in notes)
    assert any("coral (all seeds)" in note for note in first.notes)
    assert "left out to stay within the budget of 1 min 30 s" in first.report.read_text()
    assert {"method": "coral", "seed": 1} in first.schedule.json()["left_out"]
    complete = compare(data, budget="none", **keywords)
    assert len(complete.records) == 12
    assert not complete.schedule.left_out
    assert complete.schedule.budget is None


def test_lines_name_method_target_and_time_left(monkeypatch):
    said = []
    monkeypatch.setattr(console, "say", lambda *sentences, **_: said.extend(sentences))
    monkeypatch.setattr(console, "INTERVAL", 0.02)
    lines = console._progress_lines()
    lines.expect(lambda: 200.0)
    lines.start(10, 0)
    lines.begin("mil films seed 0", 300)
    lines.step({})
    with console._reported(lines):
        while len(said) < 3:
            pass
    assert said[-1] == "0 of 10 runs are finished; mil films seed 0, step 1 of 300; about 3 min 20 s left"
    lines.encoding(5, 10)
    lines.report()
    assert "encoding 5 of 10 examples" in said[-1]
    lines.estimating()  # of a second comparison of the same command
    lines.report()
    assert said[-1] == "estimating the time of the runs"
    lines.searching("erm 1e-4")
    lines.report()
    assert said[-1] == "searching the learning rate: erm 1e-4"


def test_the_first_run_of_a_process_does_not_change_the_expected_duration():
    clock, jobs = Clock(), jobs_of("erm", seeds=2)
    timing = Timing(clock=clock)
    for job, seconds in zip(jobs, (20.0, 22.0, 1.0, 1.5), strict=True):
        timing.begin(job)
        clock.now += seconds
        timing.end(job)
    assert timing.seconds(jobs[0]) == 1.5


def test_methods_with_a_neck_are_probed_before_others_and_the_rest_follows_its_neck(data, tmp_path, monkeypatch):
    probed = []

    def probe(job, workspace, small, threads):
        probed.append(job.spec.method)
        return estimation._Probe(0.0, {"erm": 1.0, "hma": 50.0}[job.spec.method], 4, 10)

    monkeypatch.setattr(estimation, "_probe", probe)
    monkeypatch.setattr(estimation._Probe, "seconds", lambda self, job, workspace: self.step)
    workspace = Workspace(data, cache=None, out=tmp_path)
    jobs = resolve(Request(methods=["coral", "erm", "hma"], seeds=[0], **OPTIONS), workspace)
    ticks = iter(range(0, 100, 6))
    monkeypatch.setattr(estimation.time, "perf_counter", lambda: next(ticks))
    expected = estimate(jobs, workspace, always=True, limit=13)
    assert expected is not None
    assert probed == ["erm", "hma"]
    assert {job.spec.method: expected.runs[configuration(job)] for job in jobs} == {"coral": 1, "erm": 1, "hma": 50}
