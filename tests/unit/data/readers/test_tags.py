"""Tagged sentences from CoNLL files and tables, converted to BIO tags."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.tags import read_tags
from tests.annotated import DOMAINS, tagged_sentences, write_conll, write_names

CLASSES = ("O", "B-THING", "I-THING", "B-WORK", "I-WORK")


def sentences(dataset):
    found = dataset.raw.take(np.arange(len(dataset)))
    return [(each.words, [dataset.classes[tag] for tag in each.tags]) for each in found]


def test_every_format_gives_the_same_sentences(tmp_path):
    message = tagged_sentences("home", 6)
    lines = write_conll(tmp_path / "a.conll", message)
    rows = [{"tokens": words, "ner_tags": tags, "domain": "x"} for words, tags in message]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    flat = "".join(f"{' '.join(words)},{' '.join(tags)}\n" for words, tags in message)
    (tmp_path / "a.csv").write_text("words,tags\n" + flat)
    found = [read_tags(path) for path in (lines, *(tmp_path / f"a.{end}" for end in ("jsonl", "parquet", "csv")))]
    for each in found:
        assert each.classes == CLASSES
        assert sentences(each) == sentences(found[0])
        assert (each.y == -1).all()
    assert sentences(found[0])[1][1][-3:] == ["B-THING", "I-THING", "B-WORK"]
    assert found[0].notes[0].startswith("9 entities of a.conll begin with I-")
    assert found[0].raw.digest(np.arange(6)) == found[2].raw.digest(np.arange(6)) != found[0].raw.digest(np.arange(5))


def test_tagging_schemes_are_converted_to_bio(tmp_path):
    schemes = {
        "old": "I-A B-A I-A O I-B",
        "new": "B-A B-A I-A O B-B",
        "ends": "S-A B-A E-A O S-B",
        "last": "U-A B-A L-A O U-B",
    }
    for name, tags in schemes.items():
        path = write_conll(tmp_path / f"{name}.conll", [(list("vwxyz"), tags.split())])
        assert sentences(read_tags(path))[0][1] == ["B-A", "B-A", "I-A", "O", "B-B"], name


def test_tag_column_can_be_chosen(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x B-A 7\ny O 8\n")
    assert sentences(load_data(f"{path}@column=2", known={}, form="tags")) == [(["x", "y"], ["B-A", "O"])]
    with pytest.raises(BadInput, match=r"sentence 1 has the tag '7'.*@column"):
        read_tags(path)


def test_files_of_a_folder_are_domains_or_splits(tmp_path):
    found = read_tags(write_names(tmp_path / "names", 4))
    assert found.domains == tuple(sorted(DOMAINS))
    assert found.split is None
    for name in ("train", "dev", "test"):
        write_conll(tmp_path / "both" / "home" / f"{name}.conll", tagged_sentences("home", 4))
        write_conll(tmp_path / "both" / "shop" / f"{name}.iob2", tagged_sentences("shop", 4))
    found = read_tags(tmp_path / "both")
    assert found.domains == ("home", "shop")
    assert np.bincount(found.split).tolist() == [8, 8, 8]


def test_prediction_needs_only_words(tmp_path):
    (tmp_path / "a.txt").write_text("the\nphone\n\nbad\n")
    (tmp_path / "a.csv").write_text("id,text\nq,the phone\n")
    for name, words in (("a.txt", [["the", "phone"], ["bad"]]), ("a.csv", [["the", "phone"]])):
        found = read_tags(tmp_path / name, ReadOptions(need=()))
        assert [each.words for each in found.raw.take(np.arange(len(found)))] == words
        assert found.classes == ()
    with pytest.raises(BadInput, match="line 1 has no tag for 'the'"):
        read_tags(tmp_path / "a.txt")


BAD = {
    "no tags": ("a.csv", "tokens\na b\n", "no tags column"),
    "fewer tags": ("a.csv", "tokens,tags\na b,O\n", "row 1 has 2 words but 1 tags"),
    "no entity": ("a.conll", "a O\nb O\n", "only the tag O"),
    "nothing": ("a.conll", "\n\n", "has no sentences"),
    "parts of speech": ("a.conll", "a NN\n", "the tag 'NN'"),
    "numbers": ("a.jsonl", '{"tokens": ["a"], "tags": [3]}\n', "the tag '3'"),
    "no words": ("a.jsonl", '{"tokens": [], "tags": []}\n', "row 1, column 'tokens' has no words"),
    "no json": ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{\n', "row 2 is not JSON"),
    "unpaired surrogate": ("a.jsonl", '{"tokens": ["\\ud83d"], "tags": ["O"]}\n', "row 1 has an unpaired surrogate"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_files_are_rejected(tmp_path, case):
    name, text, message = BAD[case]
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=message):
        read_tags(tmp_path / name)


def test_folder_without_files_is_rejected(tmp_path):
    with pytest.raises(BadInput, match="no file of words and tags"):
        read_tags(tmp_path)
