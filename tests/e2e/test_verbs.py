"""Every command, with text and JSON output."""

import csv
import html
import json
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast import catalog
from tests.calls import run_cli
from tests.e2e.conftest import QUICK, write_reviews

CELL = {"method", "target", "metric", "mean", "stderr", "n"}


def comparison(data, *extra, methods="erm", seeds=1, steps=8):
    """Return the words of a small comparison without simple baselines."""
    words = ["compare", "--no-baselines", data, "--seeds", seeds, "--steps", steps, *extra]
    return [*words, "--methods", methods] if methods else words


@pytest.mark.parametrize("what", ["methods", "encoders", "datasets", "protocols", "selections", "analyses"])
def test_list(holdfast, what):
    ran = holdfast("list", what, "--json")
    assert ran.code == 0
    assert len(ran.json) == len(catalog.SECTIONS[what])
    assert all(entry["name"] and entry["about"] for entry in ran.json)
    text = holdfast("list", what)
    assert text.code == 0
    assert all(entry["name"] in text.out for entry in ran.json)


def test_compare_prints_one_json_document(holdfast, reviews, quick, tmp_path):
    words = comparison(reviews, "--no-combinations", "--no-model", "--out", "runs", "--json", *quick, seeds=2, steps=20)
    ran = holdfast(*words)
    assert ran.code == 0, ran.err
    assert ran.json["choice"]["label"] == "erm"
    assert ran.json["model"] is None
    assert not (tmp_path / "runs" / "model").exists()
    assert set(ran.json) >= {"table", "records", "report"}
    assert all(set(cell) == CELL for cell in ran.json["table"])
    targets = {cell["target"]: cell for cell in ran.json["table"]}
    assert set(targets) == {"books", "films", "phones", "shoes", "average", "worst"}
    assert targets["films"]["n"] == 2
    assert len(ran.json["records"]) == 8
    assert len(list((tmp_path / "runs" / "records").glob("*.json"))) == 8
    assert (tmp_path / ran.json["report"]).read_text().startswith("<!")
    record = ran.json["records"][0]
    assert set(record["stages"][0]["test"]["books"]) == {
        "accuracy", "macro_f1", "micro_f1", "balanced_accuracy", "mcc", "roc_auc", "nll", "ece",
    }  # fmt: skip
    assert record["cost"]["seconds"] > 0
    assert record["machine"]["device"] == "cpu"


def test_compare_recommends_and_trains_a_model(holdfast, reviews, quick, tmp_path):
    words = comparison(reviews, "--out", "runs", *quick, methods="erm,coral", steps=10)
    ran = holdfast(*words)
    assert ran.code == 0, ran.err
    assert "choice: erm" in ran.err + ran.out
    model = tmp_path / "runs" / "model"
    weights = (model / "model.safetensors").stat().st_mtime_ns
    spec = json.loads((model / "record.json").read_text())["spec"]
    assert (spec["plan"], spec["method"], spec["steps"]) == ("all", "erm", 10)
    assert "Recommended: erm" in (tmp_path / "runs" / "report.html").read_text()
    predicted = holdfast("predict", model, reviews, "--out", "labels.csv")
    assert predicted.code == 0, predicted.err
    assert len((tmp_path / "labels.csv").read_text(encoding="utf-8").splitlines()) == 161
    again = holdfast(*words, "--json")
    assert again.json["choice"]["label"] == "erm"
    assert again.json["model"] == "runs/model"
    assert (model / "model.safetensors").stat().st_mtime_ns == weights  # the model is not trained again


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A model folder, and what `fit --json` printed."""
    folder = tmp_path_factory.mktemp("fitted")
    data = write_reviews(folder / "reviews.csv")
    ran = run_cli("fit", data, "--steps", 60, "--out", folder / "model", "--json", *QUICK)
    assert ran.code == 0, ran.out
    return folder / "model", json.loads(ran.out)


def test_fit_then_predict_without_labels_or_domains(holdfast, fitted, tmp_path):
    model, printed = fitted
    assert min(printed["valid"].values()) > 0.8
    assert {p.name for p in model.iterdir()} >= {"model.safetensors", "config.json", "README.md"}
    (tmp_path / "new.csv").write_text("id,text\nx1,great superb thing\nx2,dreadful broken dull\n")
    for suffix in ("csv", "jsonl", "parquet"):
        ran = holdfast("predict", model, "new.csv", "--out", f"out.{suffix}", "--json")
        assert ran.code == 0, ran.out
        assert ran.json["predictions"] == 2
        assert ran.json["out"] == f"out.{suffix}"
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [(r["id"], r["label"]) for r in rows] == [("x1", "pos"), ("x2", "neg")]
    assert float(rows[0]["p_pos"]) + float(rows[0]["p_neg"]) == pytest.approx(1.0, abs=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [r["label"] for r in lines] == ["pos", "neg"]
    assert pq.read_table(tmp_path / "out.parquet").column_names == ["id", "label", "p_neg", "p_pos", "foreign"]


def test_predict_scores_known_labels(holdfast, fitted, tmp_path):
    (tmp_path / "new.csv").write_text("text,label\ngreat,pos\nawful,neg\nhm,never-seen\nopen,\n")
    ran = holdfast("predict", fitted[0], "new.csv", "--json")
    assert (ran.json["scored"], ran.json["accuracy"]) == (2, 1.0)


def test_bad_rows_are_skipped_and_columns_carried(holdfast, reviews, quick, tmp_path):
    reviews.write_text(reviews.read_text() + "lost,,books\nonly two,pos\n")
    refused = holdfast("fit", reviews, "--steps", 4, "--out", "model", *quick)
    assert refused.code == 2
    assert "2 bad cells in 2 rows" in " ".join(refused.err.split())
    fitted = holdfast("fit", reviews, "--steps", 4, "--out", "model", "--skip-bad", *quick)
    assert fitted.code == 0, fitted.err
    assert "--skip-bad: 2 of 162 rows" in " ".join(fitted.err.split())
    (tmp_path / "new.csv").write_text("text;label;price\ngreat;pos;1,5\n ;neg;2\nawful;neg;3,25\n")
    words = ("predict", "model", "new.csv", "--with", "price,label", "--json")
    ran = holdfast(*words)
    assert ran.code == 2
    assert "row 2, column 'text' has no text" in ran.json["error"]
    ran = holdfast(*words, "--skip-bad")
    assert ran.code == 0, ran.err
    assert any("separated by semicolons" in note for note in ran.json["notes"])
    assert any("1 of 3 rows" in note for note in ran.json["notes"])
    rows = list(csv.DictReader((tmp_path / "predictions.csv").read_text().splitlines()))
    assert [(row["id"], row["price"], row["input_label"]) for row in rows] == [
        ("1", "1,5", "pos"),
        ("3", "3,25", "neg"),
    ]
    audited = holdfast("audit", reviews, "--skip-bad", "--clean", "clean.csv")
    assert audited.code == 0, audited.err
    assert "--skip-bad" in " ".join(audited.err.split())
    clean = list(csv.DictReader((tmp_path / "clean.csv").read_text().splitlines()))
    assert {row["label"] for row in clean} == {"pos", "neg"}


def test_report_is_built_from_records_alone(holdfast, reviews, quick, tmp_path):
    holdfast(*comparison(reviews, "--analyse", "routing", "--out", "runs", *quick))
    reviews.unlink()
    (tmp_path / "runs" / "report.html").unlink()
    ran = holdfast("report", "runs", "--metric", "macro_f1", "--json")
    assert ran.code == 0
    assert {cell["metric"] for cell in ran.json["table"]} == {"macro_f1"}
    assert "routing: nothing to show" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    assert "routing: nothing to show" in holdfast("report", "runs").err.replace("\n", " ")


def test_checkpoint_of_another_spec_is_not_resumed(holdfast, reviews, quick, tmp_path):
    from holdfast.train import resume

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_SAVE_SECONDS", "0")
        patch.setattr(resume.Saver, "finish", lambda self: None)  # simulates a kill before the end
        assert holdfast("fit", reviews, "--steps=6", "--out=a", *quick).code == 0
    (tmp_path / "a" / "config.json").unlink()
    assert holdfast("fit", reviews, "--steps=9", "--out=a", *quick).code == 0
    assert holdfast("fit", reviews, "--steps=9", "--out=b", *quick).code == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


def test_command_of_a_report_repeats_its_runs(holdfast, reviews, quick, tmp_path):
    first = holdfast(
        "compare", reviews, "--methods", "erm", "--seeds", "7,", "--steps", 2, *quick, "--no-model", "--json",
        "--no-baselines", "--set", "plan.targets=books", "--set", "neck=projection", "--examples", 12,
        "--out", tmp_path / "first",
    )  # fmt: skip
    assert first.code == 0, first.err
    page = Path(first.json["report"]).read_text(encoding="utf-8")
    (command,) = re.findall(r"<code>(.+?)</code>", page)
    words = shlex.split(html.unescape(command))
    assert words[:3] == ["holdfast", "compare", str(reviews)]
    again = holdfast(*words[1:], "--no-model", "--json", "--out", tmp_path / "again")
    assert again.code == 0, again.err
    assert [r["id"] for r in again.json["records"]] == [r["id"] for r in first.json["records"]]
    assert again.json["table"] == first.json["table"]


NEW_DOMAIN = "hats"


def write_new(path, *, flipped=False, label="pos"):
    lines = ["text,label"]
    for i in range(40):
        good = (i % 2 == 0) != flipped
        lines.append(f"{'superb fine' if i % 2 == 0 else 'awful poor'} hat{i},{label if good else 'neg'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_adapt_limits_forgetting_and_rolls_back(holdfast, reviews, quick, tmp_path):
    assert holdfast("fit", reviews, "--steps", 150, "--out", "model", *quick).code == 0
    write_new(tmp_path / "hats.csv")
    words = ["adapt", "model", "hats.csv", "--steps", 10, "--method", "replay"]
    without = holdfast(*words)
    assert without.code == 2
    assert "--earlier FILE" in without.err
    done = holdfast(*words, "--earlier", reviews, "--json")
    assert done.code == 0, done.err
    assert (done.json["version"], done.json["domain"]) == (2, NEW_DOMAIN)
    assert set(done.json["forgetting"]) == {"books", "films", "phones", "shoes"}
    flipped = write_new(tmp_path / "flipped.csv", flipped=True)
    hard = ["adapt", "model", flipped, "--earlier", reviews, "--earlier", "hats.csv"]
    hard += ["--method", "erm", "--steps", 60, "--lr", 0.05]
    rejected = holdfast(*hard)
    assert rejected.code == 3
    assert "--max-forgetting 5" in rejected.err
    assert "forgot" in rejected.out
    assert holdfast(*hard, "--force", "--json").json["version"] == 3
    listed = holdfast("rollback", "model")
    assert [line[:1] for line in listed.out.splitlines()] == ["1", "2", "3"]
    assert "3 (" in listed.out
    assert "forced" in listed.out
    assert holdfast("rollback", "model", 1).code == 0
    assert holdfast("rollback", "model", "--json").json["current"] == 1
    assert holdfast("rollback", "model", 8).code == 2
    assert "nowhere is not a model folder" in holdfast("rollback", "nowhere").err
    overwritten = holdfast("fit", reviews, "--steps", 2, "--out", "model", *quick)
    assert overwritten.code == 2
    assert "several versions" in overwritten.err
