"""Tagging, question answering and pretraining from files to files."""

import csv
import json

import pytest

from tests.annotated import tagged_sentences, write_conll, write_corpus, write_names
from tests.tiny import WORDS, tiny_bert

FEW = ["--batch", "8", "--lr", "0.003", "--set", "encoder.length=24", "--set", "every=10"]


@pytest.fixture
def bert(tmp_path):
    return f"hf:{tiny_bert(tmp_path / 'bert')}"


def test_tag_from_files(holdfast, tmp_path, bert):
    write_names(tmp_path / "names")
    words = ("--task", "tag", "--encoder", bert, "--tune", "full", "--steps", 50, "--out", "m", "--json")
    ran = holdfast("fit", "names", *words, *FEW)
    assert ran.code == 0, ran.out
    assert ran.json["metric"] == "entity_f1"
    assert min(ran.json["valid"].values()) > 0.9
    assert "(O, B-THING" in (tmp_path / "m" / "README.md").read_text()

    write_conll(tmp_path / "new.conll", tagged_sentences("sea", 5))
    assert holdfast("predict", "m", "new.conll", "--out", "said.jsonl").code == 0
    result = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert [row["tokens"] for row in result] == [words for words, _ in tagged_sentences("sea", 5)]
    assert result[1]["tags"][-3:] == ["B-THING", "I-THING", "B-WORK"]
    (tmp_path / "new.csv").write_text("id,text\nq,the bad phone\n")
    assert "sentences: 1" in holdfast("predict", "m", "new.csv", "--out", "said.csv").err
    with (tmp_path / "said.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"id": "q", "tokens": "the bad phone", "tags": "O O B-THING"}]


def test_predict_masked_words(holdfast, tmp_path, bert):
    write_corpus(tmp_path / "texts.txt", 60)
    words = ("--task", "masked", "--encoder", bert, "--steps", 40, "--out", "m", *FEW)
    assert holdfast("fit", "texts.txt", *words).code == 0
    (tmp_path / "new.csv").write_text("id,text\na,the [MASK] was very [MASK]\nb,the food was\nc,a [MASK] was not bad\n")
    assert "texts: 3" in holdfast("predict", "m", "new.csv", "--out", "said.jsonl").err
    result = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert [row["id"] for row in result] == ["a", "b", "c"]
    assert [len(row["words"]) for row in result] == [len(row["scores"]) for row in result] == [2, 0, 1]
    assert {word for row in result for word in row["words"]} <= set(WORDS)  # single letters occur in no text
    assert all(0.05 < score <= 1 for row in result for score in row["scores"])
    assert holdfast("predict", "m", "new.csv", "--out", "said.csv").code == 0
    with (tmp_path / "said.csv").open() as file:
        flat = list(csv.DictReader(file))
    assert [row["words"] for row in flat] == [" ".join(row["words"]) for row in result]
    assert [float(score) for score in flat[0]["scores"].split()] == pytest.approx(result[0]["scores"], abs=1e-6)
    refused = holdfast("predict", "m", "texts.txt", "--json")  # no text has a mask
    assert refused.code == 2
    assert "[MASK]" in refused.json["error"]
