import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from holdfast import BadInput, DomainClassifier, compare
from holdfast.data.synthetic import world
from holdfast.run.progress import Logged, ProgressListener, logged, open_sink, validations
from tests.unit.report import made


class Kept:
    """A sink that keeps what it is told."""

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


def test_every_step_and_every_validation_of_every_run(data, tmp_path):
    sink = Kept()
    watch = Logged(ProgressListener(), sink)
    done = compare(data, methods=["erm"], seeds=1, out=tmp_path, watch=watch, device="cpu", **SMALL)
    assert len(sink.runs) == len(done.records) == 3
    for (name, told), record in zip(sink.runs, done.records, strict=True):
        assert record.episode in name
        steps = [step for step, values in told if any(key.startswith("train/") for key in values)]
        assert steps == list(range(1, 9))
        checks = [(step, values) for step, values in told if any(key.startswith("valid/") for key in values)]
        history = record.stages[0]["history"]
        assert [step for step, _ in checks] == [check["step"] for check in history]
        for (_, values), check in zip(checks, history, strict=True):
            for domain in check["valid"]:
                assert values[f"valid/{domain}"] == check["valid"][domain]
                assert values[f"risk/{domain}"] == check["loss"][domain]
    assert not sink.open


def test_steps_go_on_over_phases_and_stages():
    def check(phase, step):
        return {"phase": phase, "step": step, "valid": {"a": 0.5}, "loss": {"a": float("nan")}}

    stages = [
        {"history": [check("meta", 2), check("meta", 4), check("final", 2)]},
        {"history": [check("meta", 3)]},
    ]
    found = list(validations(replace(made.record("mil", 0, {}), stages=stages)))
    assert [step for step, _ in found] == [2, 4, 6, 9]
    assert found[0][1] == {"valid/a": 0.5}
    low = replace(made.record("mil", 0, {}), stages=[{"history": [check("final", 1) | {"valid": {"a": -2.0}}]}])
    low.spec["metric"] = "nll"  # the loop keeps it turned, a log has it as it is
    assert list(validations(low)) == [(1, {"valid/a": 2.0})]


def test_a_run_that_breaks_off_keeps_what_it_wrote(monkeypatch, tmp_path):
    sink = Kept()
    monkeypatch.setattr("holdfast.run.progress.open_sink", lambda text, folder: sink)

    def break_off():
        with logged(ProgressListener(), "mlflow:x", tmp_path) as watch:
            watch.begin("one", 5)
            watch.step({"loss": 1.0})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    assert sink.runs == [("one", [(1, {"train/loss": 1.0})])]
    assert not sink.open


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_event_files(data, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with logged(ProgressListener(), "tensorboard", tmp_path / "logs") as watch:
        DomainClassifier(device="cpu", **SMALL).fit_dataset(data, watch=watch)
    (folder,) = (tmp_path / "logs").iterdir()
    found = reader.EventAccumulator(str(folder)).Reload()
    assert [event.step for event in found.Scalars("train/risk")] == list(range(1, 9))
    assert {tag for tag in found.Tags()["scalars"] if tag.startswith("valid/")} == {f"valid/{d}" for d in data.domains}


def test_mlflow_gets_runs_and_metrics(monkeypatch):
    said = []
    fake = SimpleNamespace(
        set_tracking_uri=lambda uri: said.append(("uri", uri)),
        set_experiment=lambda name: said.append(("experiment", name)),
        start_run=lambda *, run_name: said.append(("start", run_name)),
        log_metrics=lambda values, *, step: said.append((step, values)),
        end_run=lambda: said.append(("end",)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    with logged(ProgressListener(), "mlflow:http://here:5000", None) as watch:
        watch.begin("erm to-a", 1)
        watch.step({"loss:x": 2.0})
    assert said == [
        ("uri", "http://here:5000"), ("experiment", "holdfast"), ("start", "erm to-a"),
        (1, {"train/loss_x": 2.0}), ("end",),
    ]  # fmt: skip


def test_what_cannot_be_logged_to(monkeypatch, tmp_path):
    for wrong in ("wandb", "mlflow", "mlflow:"):
        with pytest.raises(BadInput, match="--log takes"):
            open_sink(wrong, tmp_path)
    for name in ("mlflow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    for wanted, package in (("mlflow:x", "mlflow"), ("tensorboard", "tensorboard")):
        with pytest.raises(BadInput, match=f"needs the package {package}"):
            open_sink(wanted, tmp_path)
