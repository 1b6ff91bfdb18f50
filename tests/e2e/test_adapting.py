"""Adaptation of a model folder to another domain, and rollback."""

import csv
import shutil

import pytest
from safetensors.torch import load_file

from holdfast.models.versions import current_folder
from tests.e2e.conftest import write_reviews
from tests.e2e.test_stopping import SMALL, finish, start, wait_for

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


def test_new_labels_and_folders_with_versions_are_rejected(holdfast, reviews, quick, tmp_path):
    assert holdfast("fit", reviews, "--steps", 20, "--out", "model", "--keep-sample", 5, *quick).code == 0
    write_new(tmp_path / "hats.csv", label="great")
    ran = holdfast("adapt", "model", "hats.csv", "--steps", 2)
    assert ran.code == 2
    assert "'great'" in ran.err
    assert "(neg, pos)" in ran.err
    write_new(tmp_path / "hats.csv")
    ran = holdfast("adapt", "model", "hats.csv", "--steps", 2, "--max-forgetting", 100)
    assert ran.code == 0, ran.err
    assert "version 2" in ran.err
    again = holdfast("fit", reviews, "--steps", 2, "--out", "model", *quick)
    assert again.code == 2
    assert "several versions" in again.err


def test_predict_abstains_and_counts(holdfast, quick, tmp_path):
    path = write_reviews(tmp_path / "r.csv")
    assert holdfast("fit", path, "--steps", 30, "--out", "model", *quick).code == 0
    (tmp_path / "new.csv").write_text("text\nbooks1 superb thing indeed\n" + "zz " * 30 + "\n")
    ran = holdfast("predict", "model", "new.csv", "--abstain-above", 99)
    assert ran.code == 0, ran.err
    rows = list(csv.DictReader((tmp_path / "predictions.csv").read_text().splitlines()))
    count = sum(row["label"] == "" for row in rows)
    assert f"above 99: {count}" in ran.err
    assert float(rows[1]["foreign"]) > float(rows[0]["foreign"])
    assert holdfast("predict", "model", "new.csv", "--uncalibrated").code == 0


@pytest.mark.slow
def test_adapt_resumes_after_sigkill_and_keeps_the_old_version(tmp_path):
    write_reviews(tmp_path / "r.csv")
    write_new(tmp_path / "hats.csv")
    code, _, err = finish(tmp_path, "fit", "r.csv", "--steps=30", "--keep-sample=8", "--out=a", *SMALL)
    assert code == 0, err
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    words = ["hats.csv", "--steps=400", "--max-forgetting=100"]
    code, _, err = finish(tmp_path, "adapt", "a", *words)
    assert code == 0, err
    process = start(tmp_path, "adapt", "b", *words, HOLDFAST_SAVE_SECONDS="0")
    wait_for(lambda: list((tmp_path / "b" / "checkpoints").glob("*.safetensors")), process)
    process.kill()
    process.communicate()
    assert current_folder(tmp_path / "b") == tmp_path / "b"
    code, _, err = finish(tmp_path, "adapt", "b", *words)
    assert code == 0, err
    uninterrupted, resumed = (load_file(tmp_path / name / "versions" / "2" / "model.safetensors") for name in "ab")
    assert list(uninterrupted) == list(resumed)
    assert all(value.equal(resumed[name]) for name, value in uninterrupted.items())
