"""A search as a user runs it: a table, a page, a file to fit by; again it trains nothing; bad input is one sentence."""

import json

import numpy as np
import pytest

from holdfast.data.synthetic import world

QUICK = ["--encoder", "mlp", "--set", "encoder.hidden=[8]", "--steps", 6, "--device", "cpu"]


@pytest.fixture
def arrays(tmp_path):
    made = world("vector", "rotation", domains=3, size=24)
    path = tmp_path / "world.npz"
    labels, domains = np.asarray(made.classes, dtype=str)[made.y], np.asarray(made.domains, dtype=str)[made.domain]
    np.savez(path, x=made.raw.data, y=labels, domain=domains)
    return path


def test_sweep_then_again_then_fit_and_compare_by_its_file(holdfast, arrays, tmp_path):
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
    assert "12 of 12 runs are done already" in again.err
    assert "best settings of coral: runs/best-coral.json" in again.err
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs" / "records").iterdir()} == before

    best = json.loads((tmp_path / "runs" / "best-coral.json").read_text())
    fitted = holdfast("fit", arrays, "--config", "runs/best-coral.json", "--out", "model", "--json")
    assert fitted.code == 0, fitted.out
    spec = fitted.json["record"]["spec"]
    assert (spec["method"], spec["encoder"], spec["lr"], spec["steps"]) == ("coral", "mlp", best["lr"], 6)
    assert spec["encoder_args"] == {"hidden": [8]}
    told = ["--lr", 0.5, "--set", "encoder.hidden=[4]", "--methods", "erm,coral", "--seeds", 1, "--steps", 5]
    compared = holdfast("compare", arrays, "--config", "runs/best-erm.json", *told, "--json")
    assert compared.code == 0, compared.out
    specs = [r["spec"] for r in compared.json["records"]]
    assert {s["method"] for s in specs} == {"erm", "coral"}
    assert {(s["lr"], s["steps"], *s["encoder_args"]["hidden"]) for s in specs} == {(0.5, 5, 4)}
    assert holdfast("report", "runs", "--out", "trials.html", "--json").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sampler", "randon"], "unknown sampler 'randon': did you mean 'random'"),
        (["--trials", "0"], "--trials must be at least 1"),
        (["--trials", "many"], "--trials"),
        (["--methods", "corl"], "did you mean 'coral'"),
        (["--select", "orakel"], "did you mean 'oracle'"),
        (["--select", "leave-one-domain-out", "--plan", "stream"], "with the plan leave-one-out"),
        (["--seeds", "0"], "at least one seed"),
    ],
)
def test_a_wrong_search_is_one_sentence(holdfast, arrays, tmp_path, words, said):
    ran = holdfast("sweep", arrays, "--out", "runs", *QUICK, *words)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no file best.json"),
        ("{", "not a JSON file"),
        ("[1]", "no JSON object"),
        ('{"method": 3}', "method takes a word"),
        ('{"lrr": 1}', "did you mean 'lr'"),
        ('{"method": "coral", "method.wait": 1}', "did you mean 'weight'"),
        ('{"steps": "many"}', "steps takes a value of kind int"),
    ],
)
@pytest.mark.parametrize("verb", ["fit", "compare"])
def test_a_wrong_file_is_one_sentence(holdfast, arrays, tmp_path, verb, text, said):
    if text is not None:
        (tmp_path / "best.json").write_text(text)
    ran = holdfast(verb, arrays, "--config", "best.json", "--out", "made")
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_help_teaches_by_example(holdfast):
    ran = holdfast("sweep", "--help")
    assert ran.code == 0
    assert "holdfast sweep reviews.csv" in ran.out
