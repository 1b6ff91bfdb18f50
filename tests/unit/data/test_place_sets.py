"""Known sets of tags, questions and plain texts, each from a small file or folder."""

import json

import numpy as np
import pytest

from holdfast.comparison import training_data
from holdfast.core.errors import Absent, BadInput
from holdfast.data.known.place_sets import BOOKS_TEXTS, QA_EXTRACTIVE, Plain
from tests.task_files import write_places


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_places(tmp_path_factory.mktemp("places"))


@pytest.mark.parametrize(
    ("name", "task", "classes"),
    [("ncbi-disease", "tag", 3), ("conll2003", "tag", 9), ("medication", "span", 2), ("newsqa", "span", 2)],
)
def test_each_is_read_by_its_name(folder, name, task, classes):
    found = training_data(name, task=task, data_dir=folder)
    assert (found.name, found.domains, len(found.classes), len(found)) == (name, (name,), classes, 24)
    assert found.split is not None
    assert [int((found.split == i).sum()) for i in range(3)] == ([16, 0, 8] if name == "newsqa" else [8, 8, 8])
    assert "not the published number of examples" in found.notes[-1]


def test_entities_of_another_set_are_refused(folder, tmp_path):
    (tmp_path / "conll2003.jsonl").write_text((folder / "ncbi-disease.jsonl").read_text())
    with pytest.raises(BadInput, match="has entities of Disease, conll2003 LOC, MISC, ORG, PER"):
        training_data("conll2003", task="tag", data_dir=tmp_path)


def test_questions_of_several_domains_keep_them_and_some_name_no_split(tmp_path):
    rows = [
        {"context": "it was good", "question": "how ?", "answers": ["good"], "answer_start": [7], "domain": domain,
         "split": split}
        for domain, split in (("covid", "all"), ("books", "train"), ("books", "test"))
    ]  # fmt: skip
    (tmp_path / "qa_extractive.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = QA_EXTRACTIVE.read(data_dir=tmp_path)
    assert found.domains == ("covid", "books")
    assert found.split is not None
    assert found.split.tolist() == [-1, 0, 2]


def test_plain_texts_of_one_field(folder, tmp_path):
    found = training_data("cs-texts", task="masked", data_dir=folder)
    assert found.domains == ("cs-texts",)
    assert len(found) == 24
    assert all("computer science" in text for text in found.raw.take(np.arange(24)))
    with pytest.raises(Absent, match=r"has no texts of books-texts.*bookcorpus"):
        BOOKS_TEXTS.read(data_dir=folder)
    (tmp_path / "books-texts.txt").write_text("".join(f"line {i}\n" for i in range(9)))
    few = Plain(name="books-texts", home="", spelt=(), most=5)
    once, again = (few.read(data_dir=tmp_path) for _ in range(2))
    assert len(once) == 5
    assert once.notes == ()
    assert once.fingerprint == again.fingerprint


@pytest.mark.parametrize(
    ("name", "task", "said"),
    [("conll2003", "tag", "tokens, tags"), ("newsqa", "span", "answer_start"), ("cs-texts", "masked", "cs-texts.txt")],
)
def test_an_absent_file_is_named(name, task, said, tmp_path):
    for place in (None, tmp_path):
        with pytest.raises(Absent, match=said) as error:
            training_data(name, task=task, data_dir=place)
        assert (str(tmp_path) if place else "--data-dir") in str(error.value)
