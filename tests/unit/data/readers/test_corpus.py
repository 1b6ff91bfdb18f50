"""Plain texts: text files, table columns, folders with one domain per file, and packing."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers.corpus import read_corpus


def texts(dataset):
    return dataset.raw.take(np.arange(len(dataset)))


def test_lines_tables_and_folders(tmp_path):
    (tmp_path / "a.txt").write_text("one two\n\n  three \n")
    (tmp_path / "b.txt").write_text("four\n")
    (tmp_path / "c.csv").write_text("text,label,domain\none two,x,d\nthree,y,e\n")
    assert texts(read_corpus(tmp_path / "a.txt")) == ["one two", "three"]
    found = read_corpus(tmp_path)
    assert texts(found) == ["one two", "three", "four"]
    assert found.domains == ("a", "b")
    table = read_corpus(tmp_path / "c.csv")
    assert texts(table) == ["one two", "three"]
    assert table.domains == ("d", "e")
    assert table.classes == ()
    assert (table.y == -1).all()


def test_packing_stays_within_domain_and_split(tmp_path):
    rows = [("aa", "d", "train"), ("bb", "d", "train"), ("cc", "d", "train"), ("dd", "d", "test"), ("ee", "e", "test")]
    (tmp_path / "c.csv").write_text("text,domain,split\n" + "".join(",".join(row) + "\n" for row in rows))
    found = load_data(f"{tmp_path / 'c.csv'}@pack=5", known={}, form="corpus")
    assert texts(found) == ["aa bb", "cc", "dd", "ee"]
    assert [found.domains[i] for i in found.domain] == ["d", "d", "d", "e"]
    assert found.split.tolist() == [0, 0, 2, 2]
    assert found.name == "c@pack=5"


BAD = {
    "empty": ("a.txt", "\n \n", "has no text"),
    "pairs": ("a.csv", "premise,hypothesis\na,b\n", "pairs of texts"),
    "numbers": ("a.csv", "x,y\n1,2\n", "no text column"),
    "other": ("a.pdf", "a", "not a corpus"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_files_are_rejected(tmp_path, case):
    name, text, message = BAD[case]
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=message):
        read_corpus(tmp_path / name)


def test_empty_folder_is_rejected(tmp_path):
    with pytest.raises(BadInput, match=r"no \.txt file"):
        read_corpus(tmp_path)
