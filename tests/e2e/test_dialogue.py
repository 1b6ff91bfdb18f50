"""Dialogue from a table of pairs to a file of responses, and a small version of the published table."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from holdfast.folders.format import load_model
from holdfast.serve.service import Service
from tests.talks import pairs, write_talks

SMALL = ["--set", "encoder.hidden=24", "--set", "encoder.embedding=12", "--set", "encoder.slots=6",
         "--batch", "8", "--lr", "0.02"]  # fmt: skip


def test_fit_and_predict(holdfast, tmp_path):
    table = write_talks(tmp_path / "talks.csv")
    vectors = tmp_path / "vectors.npz"
    np.savez(vectors, words=np.array(["yes", "tea", "milk", "rope"]), vectors=np.eye(4))
    ran = holdfast(
        "fit", table, "--task", "respond", "--steps", 120, "--out", "model", "--json", *SMALL,
        "--set", f"encoder.vectors={vectors}", "--set", "encoder.directions=2", "--set", "average=none",
    )  # fmt: skip
    assert ran.code == 0, ran.out
    assert ran.json["metric"] == "nll"
    assert ran.json["record"]["spec"]["encoder"] == "dialogue-gru"
    valid = ran.json["record"]["stages"][-1]["valid"]["home"]
    assert set(valid) == {"nll", "perplexity", "bleu2", "w2v_similarity", "distinct2"}
    assert valid["bleu2"] > 0.8  # a constant answer would score about 0.6
    assert valid["w2v_similarity"] > 0.5
    assert "dialogue-gru" in (tmp_path / "model" / "README.md").read_text()

    vectors.unlink()  # needed for scoring only
    messages = sorted({message for message, _ in pairs("home")})
    (tmp_path / "messages.csv").write_text(
        "id,message\n" + "".join(f'q{i},"{text}"\n' for i, text in enumerate(messages))
    )
    ran = holdfast("predict", "model", "messages.csv", "--out", "responses.csv", "--json")
    assert ran.code == 0, ran.out
    assert ran.json["predictions"] == len(messages)
    with (tmp_path / "responses.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"q{i}" for i in range(len(messages))]
    right = dict(pairs("home"))
    assert sum(row["response"] == right[text] for row, text in zip(rows, messages, strict=True)) >= len(messages) - 1
    done = holdfast("predict", "model", "talks.csv", "--out", "responses.jsonl")
    assert "responses: 72" in done.err
    first = json.loads((tmp_path / "responses.jsonl").read_text().splitlines()[0])
    assert first["response"]
    saved = load_model(tmp_path / "model")
    assert saved.task == "respond"
    assert saved.classes == ()
    service = Service(tmp_path / "model", device="cpu")
    answers = service.answer([service.parser.parse(json.dumps({"examples": messages}).encode())])
    assert answers == [{"response": row["response"]} for row in rows]


def test_wrong_kind_of_model_raises(holdfast, tmp_path, reviews, quick):
    write_talks(tmp_path / "talks.csv", size=4)
    assert holdfast("fit", reviews, "--steps", 2, "--out", "plain", *quick).code == 0
    classifier = load_model(tmp_path / "plain")
    assert classifier.task == "classify"
    with pytest.raises(ValueError, match="no columns"):
        classifier.predict_columns(None)
    assert holdfast("fit", "talks.csv", "--task", "respond", "--steps", 1, "--out", "talker", *SMALL).code == 0
    with pytest.raises(ValueError, match="task respond"):
        load_model(tmp_path / "talker").probabilities(None)
