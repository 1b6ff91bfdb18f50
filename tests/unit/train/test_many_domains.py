"""Runs on data with many domains: defaults, the record, and selections."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.defaults import default_domains_per_step, default_plan, plan_note
from holdfast.train.resolve import Request, exclusion_reason, resolve, training_domains
from holdfast.train.run import Job, train_and_save
from holdfast.train.settings import make_spec, spec_settings
from holdfast.train.workspace import Workspace

FEW = world("vector", "rotation", domains=4, size=40, classes=2, seed=0)
MANY = world("vector", "rotation", domains=12, size=40, classes=2, seed=0)


def with_domains(sizes):
    """The rows of a small world, dealt to domains of the given sizes."""
    data = world("vector", "rotation", domains=4, size=-(-sum(sizes) // 4), classes=2, seed=0)
    data = data.subset(np.random.default_rng(0).permutation(len(data))[: sum(sizes)])
    domain = np.repeat(np.arange(len(sizes)), sizes)
    return replace(data, domain=domain, domains=tuple(f"shop {i}" for i in range(len(sizes))), split=None)


def test_defaults_depend_on_the_number_of_domains():
    assert [default_plan(n) for n in (2, 8, 9, 1000)] == ["leave-one-out"] * 2 + ["leave-groups-out"] * 2
    assert [default_domains_per_step(n, "leave-one-out") for n in (8, 9)] == [0, 8]
    assert default_domains_per_step(100, "stream") == 0
    assert plan_note(8) == ""
    assert plan_note(1000).startswith("1,000 domains are held out in 5 balanced groups")


def test_specs_resolve_plan_and_domains_per_step():
    few, many = (make_spec(data, plan="auto", encoder="mlp") for data in (FEW, MANY))
    assert (few.plan, few.domains_per_step) == ("leave-one-out", 0)
    assert (many.plan, many.domains_per_step) == ("leave-groups-out", 8)
    assert "domains_per_step" not in few.json()
    assert make_spec(MANY, settings={"plan": "auto"}).plan == "leave-groups-out"
    assert make_spec(MANY, plan="leave-one-out").plan == "leave-one-out"
    assert make_spec(MANY, settings={"domains_per_step": 0}).domains_per_step == 0
    assert make_spec(MANY, plan="stream").domains_per_step == 0
    assert make_spec(MANY, method="logistic").domains_per_step == 0
    again = make_spec(MANY, plan="auto", encoder="mlp", settings=spec_settings(many.json()))
    assert again.domains_per_step == 8
    old = {name: value for name, value in many.json().items() if name != "domains_per_step"}
    assert make_spec(MANY, plan="auto", settings=spec_settings(old)).domains_per_step == 0


def test_length_counts_the_domains_of_a_step():
    data = with_domains([500] * 40)
    assert make_spec(data, encoder="mlp", plan="auto").steps == 640  # 8 passes over 20,000 rows, 256 per step
    assert make_spec(data, encoder="mlp", plan="auto", settings={"domains_per_step": 0}).steps == 300


def test_slots_are_limited_by_the_number_of_rows():
    assert make_spec(MANY, encoder="mlp", method="mil").neck_args["slots"] == 60
    assert make_spec(FEW, encoder="mlp", method="memory+erm").neck_args["slots"] == 20
    assert make_spec(FEW, encoder="mlp", method="memory+erm", settings={"neck.slots": 512}).neck_args["slots"] == 512
    assert make_spec(FEW, encoder="mlp", method="product-memory+erm").neck_args["slots"] == 1024  # top * top
    options = {"encoder": "mlp", "method": "product-memory+erm"}
    assert make_spec(MANY, **options, settings={"neck.top": 5}).neck_args["slots"] == 49
    assert "slots" not in make_spec(MANY, encoder="mlp", method="hma").neck_args
    assert "slots" not in make_spec(MANY, encoder="mlp", method="erm").neck_args


def test_jobs_have_readable_names(tmp_path):
    jobs = resolve(Request(plan="auto", encoder="mlp"), Workspace(MANY, out=tmp_path))
    assert jobs[0].name == "erm fold 1 of 5 seed 0"
    assert Job(jobs[0].spec, "to-a", "id").name == "erm to-a seed 0"
    others = {"plan.targets": [MANY.domains[0]]}
    (job,) = resolve(Request(plan="cross-dataset", encoder="mlp", settings=others), Workspace(MANY, out=tmp_path))
    assert job.episode.count("+") == 10
    assert job.name == f"erm 11 domains to {MANY.domains[0]} seed 0"


def test_methods_need_domains_in_a_step(tmp_path):
    request = Request(methods=("mldg",), plan="auto", encoder="mlp", settings={"domains_per_step": 1})
    with pytest.raises(BadInput, match="mldg needs 2 training domains per step"):
        resolve(request, Workspace(MANY, out=tmp_path))
    spec = make_spec(MANY, plan="auto", encoder="mlp", settings={"domains_per_step": 1})
    assert "a step has 1" in exclusion_reason("mldg", spec, 1)
    stage = SimpleNamespace(train=[SimpleNamespace(domain=str(i), __len__=None) for i in range(3)])
    assert training_domains([SimpleNamespace(stages=[stage])], "train-validation", 2) == 2


@pytest.mark.parametrize("select", ["train-validation", "oracle", "leave-one-domain-out"])
def test_a_run_with_small_domains(tmp_path, select):
    sizes = np.random.default_rng(0).integers(1, 25, 60).tolist()
    data = with_domains(sizes)
    workspace = Workspace(data, out=tmp_path, keep_outputs=True)
    request = Request(plan="auto", encoder="mlp", select=select, steps=4, every=2, seeds=(0,), tested=True)
    jobs = resolve(request, workspace)
    assert any("fewer than 10 rows and are scored together" in note for note in workspace.notes)
    record = train_and_save(jobs[0].spec, jobs[0].episode_in(workspace), workspace)
    stage = record.stages[-1]
    *_, pool = stage["test"]
    assert pool.endswith("domains with fewer than 10 rows, fold 1 of 5")
    assert stage["sizes"]["test"].keys() == stage["test"].keys() == stage["right"].keys()
    counts = [n for name, n in stage["sizes"]["test"].items() if name != pool]
    assert min(counts) >= (8 if select == "oracle" else 10)
    assert len(stage["train"]) + len(counts) + int(pool.split()[0]) == 60
    assert len(json.dumps(stage)) < 60_000


def test_many_domains_are_evaluated_as_few_are(tmp_path, monkeypatch):
    """The scores of a domain do not depend on how many others share its batches."""
    data = world("vector", "rotation", domains=12, size=60, classes=2, seed=0)
    records = []
    for limit in (8, 100):
        monkeypatch.setattr("holdfast.train.evaluate.FEW_DOMAINS", limit)
        workspace = Workspace(data, out=tmp_path / str(limit))
        spec = make_spec(data, encoder="mlp", plan="joint", settings={"steps": 4, "every": 2})
        (episode,) = workspace.episodes(spec)
        records.append(train_and_save(spec, episode, workspace).stages[0])
    assert records[0]["test"].keys() == records[0]["right"].keys() == set(data.domains)
    assert records[0]["right"] == records[1]["right"]
    for name, scores in records[0]["test"].items():
        assert scores["nll"] == pytest.approx(records[1]["test"][name]["nll"], rel=1e-5)
