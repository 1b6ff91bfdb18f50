"""Prompting from the command line: template, label words, saved model, errors."""

import json

import pytest

from holdfast.folders.format import load_model
from tests.e2e.conftest import write_reviews
from tests.tiny import tiny_bert, tiny_masked

TEMPLATE = "encoder.template=It was {mask} . {text}"
WORDS = 'head.words={"neg": ["bad", "not"], "pos": "good"}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_masked(tmp_path_factory.mktemp("bert"))


def settings(*pairs):
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.mark.parametrize("tune", ["full", "frozen"])
def test_fit_and_predict(holdfast, folder, reviews, tmp_path, tune):
    words = settings(TEMPLATE, "head=words", WORDS)
    ran = holdfast(
        "fit", reviews, "--encoder", f"hf:{folder}", "--tune", tune, "--steps", 8, "--batch", 8, "--out", "model",
        *words,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert holdfast("predict", "model", reviews, "--out", "first.csv").code == 0
    saved = load_model(tmp_path / "model")
    assert saved.model.head.settings["words"] == [[6, 12], [5]]
    assert saved.encoder.settings["template"] == "It was {mask} . {text}"
    saved.save(tmp_path / "again")
    assert holdfast("predict", "again", reviews, "--out", "second.csv").code == 0
    first, second = ((tmp_path / name).read_text() for name in ("first.csv", "second.csv"))
    assert first == second
    assert first.count("\n") == 161


def test_checkpoint_without_masked_lm_head(holdfast, tmp_path):
    write_reviews(tmp_path / "r.csv", size=6)
    words = ["fit", "r.csv", "--encoder", f"hf:{tiny_bert(tmp_path / 'b')}", "--steps", 2, "--out", "m"]
    words += settings(TEMPLATE, "head=words", WORDS)
    ran = holdfast(*words)
    assert ran.code == 2
    assert "masked-LM head" in " ".join(ran.err.split())
    assert holdfast(*words, "--set", "head.tied=true").code == 0
    assert json.loads((tmp_path / "m" / "config.json").read_text())["head"]["settings"]["inner"] == 0
