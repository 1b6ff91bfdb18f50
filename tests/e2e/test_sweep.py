"""Hyperparameter search from the command line: table, report, config file, rerun and bad input."""

import json

import numpy as np
import pytest

from holdfast.data.synthetic import world

QUICK = ["--encoder", "mlp", "--set", "encoder.hidden=[8]", "--steps", 6, "--device", "cpu"]


@pytest.fixture
def arrays(tmp_path):
    data = world("vector", "rotation", domains=3, size=24)
    path = tmp_path / "world.npz"
    labels, domains = np.asarray(data.classes, dtype=str)[data.y], np.asarray(data.domains, dtype=str)[data.domain]
    np.savez(path, x=data.raw.data, y=labels, domain=domains)
    return path


def test_sweep_rerun_then_fit_and_compare_with_its_config(holdfast, arrays, tmp_path):
    words = ["sweep", arrays, "--methods", "erm,coral", "--trials", 2, "--seeds", 1, "--out", "runs", *QUICK]
    ran = holdfast(*words, "--json")
    assert ran.code == 0, ran.out
    assert set(ran.json) >= {"table", "records", "report", "chosen", "best"}
    assert {c["method"] for c in ran.json["table"]} == {"erm", "coral"}
    assert len(ran.json["records"]) == len(ran.json["chosen"]) == 6
    assert (tmp_path / ran.json["report"]).read_text().startswith("<!")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs" / "records").iterdir()}
    assert len(before) == 12
    again = holdfast(*words)
    assert again.code == 0
    assert "12 of 12 runs" in again.err
    assert "best settings of coral: runs/best-coral.json" in again.err
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs" / "records").iterdir()} == before

    best = json.loads((tmp_path / "runs" / "best-coral.json").read_text())
    fitted = holdfast("fit", arrays, "--config", "runs/best-coral.json", "--out", "model", "--json")
    assert fitted.code == 0, fitted.out
    spec = fitted.json["record"]["spec"]
    assert (spec["method"], spec["encoder"], spec["lr"], spec["steps"]) == ("coral", "mlp", best["lr"], 6)
    assert spec["encoder_args"] == {"hidden": [8]}
    options = ["--lr", 0.5, "--set", "encoder.hidden=[4]", "--methods", "erm,coral", "--seeds", 1, "--steps", 5]
    compared = holdfast("compare", "--no-baselines", arrays, "--config", "runs/best-erm.json", *options, "--json")
    assert compared.code == 0, compared.out
    specs = [r["spec"] for r in compared.json["records"]]
    assert {s["method"] for s in specs} == {"erm", "coral"}
    assert {(s["lr"], s["steps"], *s["encoder_args"]["hidden"]) for s in specs} == {(0.5, 5, 4)}
    assert holdfast("report", "runs", "--out", "trials.html", "--json").code == 0
