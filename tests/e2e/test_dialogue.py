"""Dialogue from a table of pairs to a file of responses, and a small version of the published table."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from holdfast.folders.format import load_model
from holdfast.serve.service import Service
from tests.published import write_published
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


def test_compare_over_a_stream_reports_the_requested_metric(holdfast, tmp_path):
    table = write_talks(tmp_path / "talks.csv")
    ran = holdfast(
        "compare", table, "--set", "task=respond", "--plan", "stream", "--methods", "erm,progressive(ewc)",
        "--seeds", 1,
        "--steps", 12, "--metric", "bleu2", "--json", "--set", "method.expand=MV", "--set", "method.slots=3", *SMALL,
    )  # fmt: skip
    assert ran.code == 0, ran.out
    plain, record = sorted(ran.json["records"], key=lambda each: each["spec"]["method"])
    assert plain["spec"]["method_args"] == {}  # erm has no such settings
    assert record["spec"]["method_args"] == {"expand": "MV", "slots": 3}
    assert {cell["metric"] for cell in ran.json["table"]} == {"bleu2"}
    first, _, last = record["stages"]
    assert all(check["valid"]["home"] < 0 for check in first["history"])  # selected by the likelihood
    assert all(0 <= scores["bleu2"] <= 1 for scores in last["test"].values())
    assert last["test"]["farm"]["w2v_similarity"] is None


@pytest.mark.slow
def test_small_version_of_the_published_table(holdfast, tmp_path):
    write_published(tmp_path / "data", "dialogue", size=40)
    np.savez(tmp_path / "v.npz", words=np.array(["yes", "it", "is"]), vectors=np.eye(3))
    ran = holdfast(
        "reproduce", "pmb/table5", "--rows", "rnn-s,f,f+m+v,f+h+v,ewc", "--seeds", 1, "--steps", 6, "--json",
        "--data-dir", "data", "--set", f"encoder.vectors={tmp_path / 'v.npz'}", "--set", "method.slots=4",
        "--set", "encoder.slots=4",
        "--set", "encoder.hidden=8", "--set", "encoder.embedding=8", "--set", "encoder.slot_width=8",
    )  # fmt: skip
    assert ran.code == 0, ran.out
    cells = {(cell["row"], cell["column"]): cell for cell in ran.json["table"]}
    assert len(cells) == 20
    for cell in cells.values():
        assert cell["n"] == 1
        assert cell["mean"] is not None
        assert -1 <= cell["mean"] <= (100 if cell["metric"] == "bleu2" else 1)
    assert cells["f+m+v", "bleu-t"]["published"] == 1.652
    stages = {record["spec"]["method_args"]["expand"]: record["cost"]["parameters"] for record in ran.json["records"]}
    assert stages["MV"] > stages["F"]
    assert stages["HV"] > stages["F"]


HEAD = "message,response,domain\n"
FINE = "".join(f"hi {i},ho {i},{domain}\n" for domain in "ab" for i in range(6))
BAD = {
    "blank message": (HEAD + FINE + ",hello,a\n", [], r"row 13, column 'message' has no text"),
    "blank response": (HEAD + FINE + "hello,,a\n", [], r"row 13, column 'response' has no text"),
    "no responses": ("message,domain\n" + "hi,a\nho,b\n" * 4, [], r"message and response"),
    "no domain": ("message,response\nhi,ho\n", [], r"no domain column"),
    "a method of labels": (HEAD + FINE, ["--methods", "cdann"], r"'cdann' .*respond"),
    "an encoder of features": (HEAD + FINE, ["--encoder", "bilstm"], r"'bilstm' .*respond"),
    "a neck": (HEAD + FINE, ["--set", "neck=memory"], r"neck 'memory' .*respond"),
    "a head of classes": (HEAD + FINE, ["--set", "head=linear"], r"head 'linear' .*respond"),
    "a metric of labels": (HEAD + FINE, ["--metric", "accuracy"], r"unknown metric 'accuracy'"),
    "unknown task": (HEAD + FINE, ["--task", "respnd"], r"unknown task 'respnd': did you mean 'respond'"),
    "half a pair": (HEAD + FINE, ["--column", "response=response"], r"both --column message=NAME"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_exits_with_one_sentence(holdfast, tmp_path, case):
    text, words, pattern = BAD[case]
    (tmp_path / "data.csv").write_text(text)
    task = [] if "--task" in words else ["--task", "respond"]
    ran = holdfast("compare", "data.csv", "--seeds", 1, "--steps", 1, "--json", *task, *words)
    assert ran.code == 2
    assert list(ran.json) == ["error"]
    assert re.search(pattern, ran.json["error"]), ran.json["error"]


def test_wrong_kind_of_model_raises(holdfast, tmp_path, reviews, quick):
    write_talks(tmp_path / "talks.csv", size=4)
    assert (
        holdfast("compare", "talks.csv", "--methods", "erm", "--json")
        .json["error"]
        .startswith("talks.csv has no label")
    )
    assert holdfast("fit", reviews, "--steps", 2, "--out", "plain", *quick).code == 0
    classifier = load_model(tmp_path / "plain")
    assert classifier.task == "classify"
    with pytest.raises(ValueError, match="no columns"):
        classifier.predict_columns(None)
    assert holdfast("fit", "talks.csv", "--task", "respond", "--steps", 1, "--out", "talker", *SMALL).code == 0
    with pytest.raises(ValueError, match="task respond"):
        load_model(tmp_path / "talker").probabilities(None)
