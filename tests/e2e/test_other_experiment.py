"""Folders of another experiment are never overwritten; the same experiment resumes in its folder."""

import json
import re

import pytest

from tests.annotated import write_corpus
from tests.e2e.conftest import write_reviews
from tests.tiny import tiny_bert

VERBS = {
    "fit": (["fit", "reviews.csv", "--steps", 2], "out"),
    "compare": (
        ["compare", "--no-baselines", "reviews.csv", "--steps", 2, "--methods", "erm", "--seeds", 1],
        "out/model",
    ),
    "sweep": (["sweep", "reviews.csv", "--steps", 2, "--methods", "erm", "--seeds", 1, "--trials", 1], "out"),
}


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "records" not in path.parts}


@pytest.mark.parametrize("verb", VERBS)
def test_folder_of_another_experiment_is_kept(holdfast, reviews, quick, tmp_path, verb):
    words, folder = VERBS[verb]
    command = [*words, *quick, "--out", "out"]
    assert holdfast(*command).code == 0
    before = content(tmp_path / folder)
    write_reviews(tmp_path / "others.csv", size=20)
    other = ["others.csv" if word == "reviews.csv" else word for word in command]
    ran = holdfast(*other)
    assert ran.code == 2, ran.err
    assert f"{folder} belongs to another experiment (erm on reviews, 2 steps)" in ran.err
    assert "--out" in ran.err
    assert content(tmp_path / folder) == before
    again = holdfast(*command)
    assert again.code == 0, again.err


def test_comparison_of_the_same_data_may_replace_its_model(holdfast, reviews, quick, tmp_path):
    command = ["compare", "--no-baselines", reviews, "--seeds", 1, *quick, "--out", "out"]
    for method, steps in (("erm", 2), ("coral", 3)):
        assert holdfast(*command, "--methods", method, "--steps", steps).code == 0
        chosen = json.loads((tmp_path / "out" / "model" / "record.json").read_text())["spec"]
        assert (chosen["method"], chosen["steps"]) == (method, steps)


def test_pretrained_encoders_are_not_overwritten(holdfast, reviews, quick, tmp_path):
    corpus, start = write_corpus(tmp_path / "texts.txt", 30), tiny_bert(tmp_path / "start")
    command = ["pretrain", corpus, "--from", start, "--batch", 4, "--length", 16, "--out", "encoder"]
    ran = holdfast(*command, "--steps", 2)
    assert ran.code == 0, ran.err
    assert re.search(r"texts: .*loss \d+\.\d+ before, \d+\.\d+ after", ran.err)
    assert (tmp_path / "encoder" / "report.html").exists()
    before = content(tmp_path / "encoder")
    ran = holdfast(*command, "--steps", 3)
    assert ran.code == 2
    assert "encoder belongs to another experiment" in ran.err
    assert holdfast("fit", reviews, "--steps", 2, *quick, "--out", "encoder").code == 2
    assert content(tmp_path / "encoder") == before
    ran = holdfast("fit", reviews, "--steps", 2, *quick, "--out", start)
    assert ran.code == 2
    assert f"{start} " in ran.err
    assert "--out" in ran.err
