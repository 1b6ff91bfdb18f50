"""Published sets of tags, questions and plain texts, read from small files and folders."""

import json
from dataclasses import replace

import numpy as np
import pytest

from holdfast.core.errors import Absent, BadInput
from holdfast.data.known.base import KnownSet
from holdfast.data.load import load_data
from holdfast.train.training_data import training_data
from tests.task_files import write_places


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_places(tmp_path_factory.mktemp("places"))


@pytest.mark.parametrize(
    ("name", "task", "classes"),
    [("ncbi-disease", "tag", 3), ("conll2003", "tag", 9), ("medication", "span", 2), ("newsqa", "span", 2)],
)
def test_set_is_read_by_its_name(folder, name, task, classes):
    found = training_data(name, task=task, data_dir=folder)
    assert (found.name, found.domains, len(found.classes), len(found)) == (name, (name,), classes, 24)
    assert found.split is not None
    assert [int((found.split == i).sum()) for i in range(3)] == ([16, 0, 8] if name == "newsqa" else [8, 8, 8])
    assert "published number of examples" in found.notes[-1]


def test_entities_of_another_set_are_rejected(folder, tmp_path):
    (tmp_path / "conll2003.jsonl").write_text((folder / "ncbi-disease.jsonl").read_text())
    with pytest.raises(BadInput, match=r"Disease.*conll2003.*LOC, MISC, ORG, PER"):
        training_data("conll2003", task="tag", data_dir=tmp_path)


def test_questions_of_several_domains_keep_domains_and_missing_splits(tmp_path):
    rows = [
        {"context": "it was good", "question": "how ?", "answers": ["good"], "answer_start": [7], "domain": domain,
         "split": split}
        for domain, split in (("covid", "all"), ("books", "train"), ("books", "test"))
    ]  # fmt: skip
    (tmp_path / "qa_extractive.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_data("qa-extractive", data_dir=tmp_path)
    assert found.domains == ("covid", "books")
    assert found.split.tolist() == [-1, 0, 2]


def test_plain_texts_of_one_field(folder, tmp_path):
    found = training_data("cs-texts", task="masked", data_dir=folder)
    assert found.domains == ("cs-texts",)
    assert len(found) == 24
    assert all("computer science" in text for text in found.raw.take(np.arange(24)))
    with pytest.raises(Absent, match=r"no texts of books-texts.*bookcorpus"):
        load_data("books-texts", data_dir=folder)
    (tmp_path / "books-texts.txt").write_text("".join(f"line {i}\n" for i in range(9)))
    few = replace(KnownSet.of("books-texts"), sizes={"all": 5})
    first, second = (few.load_reader()(data_dir=tmp_path) for _ in range(2))
    assert len(first) == 5
    assert first.notes == ()
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    ("name", "expected"),
    [("conll2003", "tokens, tags"), ("newsqa", "answer_start"), ("cs-texts", "cs-texts.txt")],
)
def test_missing_file_is_reported_with_its_layout(name, expected, tmp_path):
    with pytest.raises(Absent, match=expected):
        load_data(name, data_dir=tmp_path)
