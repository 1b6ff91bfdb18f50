"""Comparisons by the queue: failures, time limits, continued commands, searched rates and samples."""

import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.api import NothingFinished, compare
from holdfast.engines import work
from holdfast.engines.work import Local
from holdfast.final_model import refit
from holdfast.folders.format import load_model
from holdfast.record import read_finished
from holdfast.train import comparison
from holdfast.train.board import Board
from holdfast.train.comparison import MOST_RESERVED, reserve
from holdfast.train.progress import ProgressListener
from holdfast.train.resolve import Request, resolve
from holdfast.train.run import outputs_path, state_path
from holdfast.train.workspace import Workspace
from tests.calls import run_cli
from tests.tables import table_world
from tests.unit.engines import faulty

pytestmark = pytest.mark.usefixtures("clean_catalog")
DATA = table_world(domains=3, size=40, classes=2, seed=0)
QUICK = {"encoder": "tabular", "steps": 12, "batch": 8, "device": "cpu", "cache": False, "engine": Local(1)}


def run(out, methods="erm", data=DATA, **options):
    return compare(data, methods=methods, out=out, **{**QUICK, "seeds": 1, "budget": "none", **options})


def stages(records):
    """Map method, seed and episode to the stages of a run, without combinations."""
    return {(r.spec["method"], r.spec["seed"], r.episode): r.stages for r in records if r.spec.get("seed") is not None}


def test_a_failed_method_is_reported_and_changes_no_other_record(tmp_path):
    bad = catalog.register_method(faulty.Raises)
    failed, plain = run(tmp_path / "a", ["erm", bad, "coral"]), run(tmp_path / "b", ["erm", "coral"])
    assert stages(failed.records) == stages(plain.records)
    assert [(failure.unit.name, failure.kind) for failure in failed.failures] == [(bad, "error")]
    assert "no such thing" in failed.failures[0].cause
    assert any(note.startswith(f"{bad} failed (") and "no such thing" in note for note in failed.notes)
    assert failed.decision is not None
    assert plain.failures == ()


@pytest.mark.parametrize(
    ("engine", "small", "expected"),
    [
        (Local(2), True, ["logistic", "erm", "logistic", "erm"]),
        (Local(1), True, ["logistic", "logistic", "logistic", "erm"]),
        (Local(0), False, ["logistic", "logistic", "logistic", "erm"]),
    ],
)
def test_units_take_turns_only_if_their_runs_share_the_cores(tmp_path, monkeypatch, engine, small, expected):
    monkeypatch.setattr(work, "max_workers", lambda _: 2)
    monkeypatch.setattr(work, "is_small", lambda *_: small)
    workspace = Workspace(DATA, device=torch.device("cpu"), cache=None, out=tmp_path)
    jobs = resolve(Request(methods=["logistic", "erm"], seeds=[0], settings={"encoder": "tabular"}), workspace)
    specs = list({str(job.spec): job.spec for job in jobs}.values())
    board = Board(specs, [0], workspace, limit=60.0, search=False, engine=engine, watch=ProgressListener())
    assert [board.next_job().spec.method for _ in expected] == expected


@pytest.fixture
def table(tmp_path):
    """A table file with two numbers, a label and three domains."""
    rng, path = np.random.default_rng(0), tmp_path / "table.csv"
    rows = [
        f"{x:.3f},{y:.3f},{'good' if x > 0 else 'bad'},{'abc'[i % 3]}"
        for i, (x, y) in enumerate(rng.normal(size=(90, 2)))
    ]
    path.write_text("\n".join(["height,width,label,domain", *rows]) + "\n")
    return path


def test_the_command_succeeds_with_a_choice_and_fails_if_nothing_could_be_compared(table, tmp_path):
    bad = catalog.register_method(faulty.Raises)
    options = ["--seeds", 1, "--steps", 8, "--jobs", 1, "--no-model", "--device", "cpu", "--no-cache"]
    ran = run_cli("compare", table, "--methods", f"erm,{bad}", "--out", tmp_path / "a", *options)
    assert ran.code == 0
    assert "choice: " in ran.err
    assert f"{bad} failed" in ran.err
    options += ["--no-baselines"]
    ran = run_cli("compare", table, "--methods", bad, "--out", tmp_path / "b", *options)
    assert ran.code == 1
    assert "error: no run could be completed: KeyError" in ran.err


@pytest.fixture
def time_left(monkeypatch):
    """The seconds that every deadline has left."""
    left = [1000.0]
    monkeypatch.setattr("holdfast.core.stopping.Deadline.left", lambda deadline: left[0])
    return left


def test_simple_baselines_remain_if_the_time_ends_with_the_first_network(tmp_path, time_left):
    class TimeEnds(ProgressListener):
        def begin(self, name, steps):
            time_left[0] = -1.0 if name.startswith("erm") else 1000.0

    done = run(tmp_path, ["erm", "coral"], budget="5m", watch=TimeEnds())
    methods = {record.spec["method"] for record in done.records}
    assert {"majority", "logistic"} <= methods
    assert not methods & {"erm", "coral"}
    assert done.decision is not None
    assert {"erm", "coral"} <= {unit.name for unit in done.schedule.left_out}
    assert "the same command with a larger --budget continues" in done.schedule.note


def test_without_any_finished_run_there_is_no_comparison(tmp_path):
    with pytest.raises(NothingFinished, match="no run was completed within 1 s"):
        run(tmp_path, budget="1s", started=time.monotonic() - 2)


class Begun(ProgressListener):
    """Collect the names of the runs that begin, and end the time after some of them."""

    def __init__(self, most=math.inf):
        self.names, self.most = [], most

    def begin(self, name, steps):
        self.names.append(name)
        if len(self.names) > self.most:
            raise KeyboardInterrupt


def test_a_second_call_continues_without_repeating_finished_runs(tmp_path):
    first = Begun(most=4)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ["erm", "coral"], watch=first)
    finished = {path.stem: path.read_bytes() for path in (tmp_path / "records").glob("*.json")}
    assert finished
    second = Begun()
    done = run(tmp_path, ["erm", "coral"], watch=second, combinations=False)
    assert not set(first.names[:4]) & set(second.names)
    assert set(finished) <= {record.id for record in done.records}
    again = Begun()
    run(tmp_path, ["erm", "coral"], watch=again, combinations=False)
    assert again.names == []


def test_what_has_finished_counts_also_if_a_second_call_has_no_time(tmp_path):
    first, late = run(tmp_path, ["erm", "coral"]), Begun()
    done = run(tmp_path, ["erm", "coral"], watch=late, budget="1s", started=time.monotonic() - 2)
    assert late.names == []
    assert stages(done.records) == stages(first.records)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A comparison with two seeds whose encoder learns long enough for a search of rates."""
    out = tmp_path_factory.mktemp("searched")
    return out, run(out, seeds=2, steps=100, model=out / "model", search_rate=True)


def test_all_seeds_of_a_searched_method_have_the_chosen_rate_of_their_target(searched):
    _, done = searched
    chosen = {choice.target: choice.rate for choice in done.rates}
    runs = [record for record in done.records if record.spec["method"] == "erm"]
    assert len(runs) == 6
    for record in runs:
        assert record.spec["lr"] == pytest.approx(chosen[record.episode])
        assert len(record.spec["searched"]["lr"]) >= 3
    assert len({str(record.spec["searched"]) for record in runs}) == 1
    assert {row["method"] for row in done.table() if row["method"].startswith("erm")} == {"erm"}


def test_the_chosen_rate_has_the_best_validation_score(searched):
    _, done = searched
    for choice in done.rates:
        assert choice.scores[choice.rate] == max(choice.scores.values())


def test_adopted_runs_have_their_files(searched):
    out, done = searched
    for record in done.records:
        if record.spec["method"] == "erm" and record.spec["seed"] == 0:
            assert read_finished(out / "records" / f"{record.id}.json") == record
            for path in (outputs_path, state_path):
                assert path(out, record.id).is_file(), path.__name__


LARGE = table_world(domains=3, size=100, classes=2, seed=0)


def test_large_data_is_first_compared_on_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.defaults.LIGHT_ROWS", 60)
    units = []

    class Units(ProgressListener):
        def unit(self, unit, records, failures):
            units.append((unit.name, unit.rows))

    done = run(tmp_path, data=LARGE, watch=Units())
    labels = {row["method"] for row in done.table()}
    assert {"erm (60 rows)", "erm"} <= labels
    assert units.index(("erm", 60)) < units.index(("erm", 300))
    for record in done.records:
        if record.spec["method"] == "erm":
            sizes = record.stages[0]["sizes"]
            assert sum(sum(each.values()) for each in sizes.values()) == (record.spec.get("rows") or 300)
    assert done.decision is not None
    assert not any("stratified sample" in note for note in done.notes)  # the table shows runs on all rows


def test_a_sample_is_noted_if_the_time_ends_before_all_rows(tmp_path, monkeypatch, time_left):
    monkeypatch.setattr("holdfast.defaults.LIGHT_ROWS", 60)

    class TimeEnds(ProgressListener):
        def unit(self, unit, records, failures):
            time_left[0] = -1.0 if unit.name == "erm" else 1000.0

    done = run(tmp_path, data=LARGE, budget="5m", watch=TimeEnds())
    assert {record.spec.get("rows") for record in done.records} == {60}
    assert any("trained and tested on a stratified sample of the 300 rows: 60 rows for " in note for note in done.notes)


def test_finished_runs_are_saved_as_an_ensemble_if_the_model_does_not_fit_into_the_time(
    tmp_path, monkeypatch, table, capsys
):
    model = tmp_path / "model"
    done = run(tmp_path / "runs", data=str(table), encoder="auto", baselines=False, budget="1h", model=model)
    monkeypatch.setattr(comparison, "MODEL_FACTOR", 1e9)
    notes = []

    class Notes(ProgressListener):
        def note(self, sentence):
            notes.append(sentence)

    assert refit(done, model, device="cpu", cache=False, watch=Notes()) == model
    assert "saved as an ensemble" in notes[-1]
    saved = load_model(model)
    assert 1 + len(saved.members) == 3  # one per domain
    predictions = tmp_path / "predictions.csv"
    assert run_cli("predict", model, table, "--out", predictions, "--device", "cpu").code == 0
    assert len(predictions.read_text().splitlines()) == 91


def board_with(*, has_baseline):
    return SimpleNamespace(has_baseline=lambda: has_baseline, records={}, workers=1)


def test_less_is_reserved_before_plain_training_has_a_result():
    early, late = (
        reserve(board_with(has_baseline=known), limit=90.0, model=True, before=25.0) for known in (False, True)
    )
    assert 0 < early < 0.5 * late


def test_a_slow_start_does_not_reserve_most_of_the_time():
    assert reserve(board_with(has_baseline=True), limit=90.0, model=True, before=80.0) <= MOST_RESERVED * 90
