"""Scalars of runs are logged completely, to any destination."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from holdfast import BadInput, DomainClassifier, compare
from holdfast.data.synthetic import world
from holdfast.train.progress import LoggingListener, ProgressListener, open_log, validations, with_logging
from tests.unit.report.fake_records import record as fake_record


class MemoryLog:
    """A log in memory."""

    def __init__(self):
        self.runs, self.open = [], False

    def begin(self, name):
        assert not self.open
        self.open = True
        self.runs.append((name, []))

    def scalars(self, values, step):
        self.runs[-1][1].append((step, dict(values)))

    def end(self):
        assert self.open
        self.open = False


@pytest.fixture(scope="module")
def data():
    return world("vector", "none", domains=3, size=20, classes=2, seed=0)


SMALL = {"steps": 8, "batch": 4, "settings": {"encoder.hidden": [4]}}


def test_all_steps_and_validations_are_logged(data, tmp_path):
    log = MemoryLog()
    watch = LoggingListener(ProgressListener(), log)
    done = compare(data, baselines=False, methods=["erm"], seeds=1, out=tmp_path, watch=watch, device="cpu", **SMALL)
    assert len(log.runs) == len(done.records) == 3
    for (name, scalars), record in zip(log.runs, done.records, strict=True):
        assert record.episode in name
        steps = [step for step, values in scalars if any(key.startswith("train/") for key in values)]
        assert steps == list(range(1, 9))
        checks = [(step, values) for step, values in scalars if any(key.startswith("valid/") for key in values)]
        history = record.stages[0]["history"]
        assert [step for step, _ in checks] == [check["step"] for check in history]
        for (_, values), check in zip(checks, history, strict=True):
            for domain in check["valid"]:
                assert values[f"valid/{domain}"] == check["valid"][domain]
                assert values[f"risk/{domain}"] == check["loss"][domain]
    assert not log.open


def test_steps_are_counted_across_phases_and_stages():
    def check(phase, step):
        return {"phase": phase, "step": step, "valid": {"a": 0.5}, "loss": {"a": float("nan")}}

    stages = [
        {"history": [check("meta", 2), check("meta", 4), check("final", 2)]},
        {"history": [check("meta", 3)]},
    ]
    steps = list(validations(replace(fake_record("mil", 0, {}), stages=stages)))
    assert [step for step, _ in steps] == [2, 4, 6, 9]
    assert steps[0][1] == {"valid/a": 0.5}
    low = replace(fake_record("mil", 0, {}), stages=[{"history": [check("final", 1) | {"valid": {"a": -2.0}}]}])
    low.spec["metric"] = "nll"  # validation scores of a loss are negated in the history
    assert list(validations(low)) == [(1, {"valid/a": 2.0})]


def test_interrupted_run_keeps_its_log(monkeypatch, tmp_path):
    log = MemoryLog()
    monkeypatch.setattr("holdfast.train.progress.open_log", lambda text, folder: log)

    def interrupt():
        with with_logging(ProgressListener(), "mlflow:x", tmp_path) as watch:
            watch.begin("one", 5)
            watch.step({"loss": 1.0})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupt()
    assert log.runs == [("one", [(1, {"train/loss": 1.0})])]
    assert not log.open


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_event_files(data, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with with_logging(ProgressListener(), "tensorboard", tmp_path / "logs") as watch:
        DomainClassifier(device="cpu", **SMALL).fit_dataset(data, watch=watch)
    (folder,) = (tmp_path / "logs").iterdir()
    events = reader.EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("train/risk")] == list(range(1, 9))
    assert {tag for tag in events.Tags()["scalars"] if tag.startswith("valid/")} == {f"valid/{d}" for d in data.domains}


def test_mlflow_receives_runs_and_metrics(monkeypatch):
    calls = []
    fake = SimpleNamespace(
        set_tracking_uri=lambda uri: calls.append(("uri", uri)),
        set_experiment=lambda name: calls.append(("experiment", name)),
        start_run=lambda *, run_name: calls.append(("start", run_name)),
        log_metrics=lambda values, *, step: calls.append((step, values)),
        end_run=lambda: calls.append(("end",)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    with with_logging(ProgressListener(), "mlflow:http://here:5000", None) as watch:
        watch.begin("erm to-a", 1)
        watch.step({"loss:x": 2.0})
    assert calls == [
        ("uri", "http://here:5000"), ("experiment", "holdfast"), ("start", "erm to-a"),
        (1, {"train/loss_x": 2.0}), ("end",),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "project"), [("wandb", "holdfast"), ("wandb:reviews", "reviews")])
def test_wandb_receives_runs_and_metrics(monkeypatch, text, project):
    calls = []
    run = SimpleNamespace(log=calls.append, finish=lambda: calls.append("end"))

    def start(*, project, name, reinit):
        calls.append((project, name))
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=start))
    with with_logging(ProgressListener(), text, None) as watch:
        watch.begin("erm to-a", 1)
        watch.step({"loss": 2.0})
    assert calls == [(project, "erm to-a"), {"train/loss": 2.0, "step": 1}, "end"]


def test_unknown_destination_or_missing_package_raises(monkeypatch, tmp_path):
    for wrong in ("comet", "mlflow", "mlflow:"):
        with pytest.raises(BadInput, match="--log takes"):
            open_log(wrong, tmp_path)
    for name in ("mlflow", "wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    for wanted, package in (("mlflow:x", "mlflow"), ("wandb", "wandb"), ("tensorboard", "tensorboard")):
        with pytest.raises(BadInput, match=f"needs the package {package}"):
            open_log(wanted, tmp_path)
