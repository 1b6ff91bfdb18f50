"""Names as codes, plain texts."""

import numpy as np
import pyarrow as pa
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers.codes import CodeColumn, spelling_notes
from holdfast.data.readers.corpus import read_corpus
from holdfast.data.readers.tables import read_table

HEAD = "text,label,domain\n"


def column(*batches):
    codes = CodeColumn()
    for batch in batches:
        codes.add(pa.array(batch), numbers=False)
    return codes


def test_labels_that_differ_in_case_stay_apart_with_a_suggestion(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(HEAD + "a,Pos,x\nb,pos,x\nc,pos,y\nd,neg,y\n")
    dataset = read_table(path)
    assert dataset.classes == ("Pos", "neg", "pos")
    (note,) = dataset.notes
    assert note == (
        f"the labels 'Pos' (1 rows), 'pos' (2 rows) of {path} differ only in case or spaces and are kept apart: "
        "if they are the same, write 'pos' in all rows"
    )
    assert any("'Pos'" in note for note in load_data(path).notes)


@pytest.mark.parametrize("names", [["New York", "NewYork"], ["new  york", "new york"], ["café", "cafe\u0301"]])
def test_inner_spaces_and_unicode_forms(names):
    (note,) = spelling_notes("domain", column(names, [names[1]]), where="f.csv")
    assert f"write {names[1]!r} in all rows" in note


def test_spaces_around_names_are_removed_with_a_note(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(HEAD + "a, pos,x\nb,pos,x \nc,neg,x\n")
    dataset = read_table(path)
    assert (dataset.classes, dataset.domains) == (("neg", "pos"), ("x",))
    assert dataset.notes == (
        f"spaces around 1 labels of {path}, such as ' pos', are removed",
        f"spaces around 1 domains of {path}, such as 'x ', are removed",
    )


def test_many_similar_names_are_counted():
    names = [f"Name {i}" for i in range(8)]
    notes = spelling_notes("label", column(names, [name.upper() for name in names]), where="f.csv")
    assert len(notes) == 6
    assert notes[-1].startswith("3 more groups of labels of f.csv")


def test_names_that_could_be_missing_values_have_a_note(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("text,label,domain\n" + "a,p,x\nb,?,NA\nc,n,x\nd,?,y\n")
    dataset = read_table(path)
    assert dataset.classes == ("?", "n", "p")
    text = "is read as a name, not as missing: remove such rows if they have no"
    notes = (f"the label '?' in 2 rows of {path} {text} label", f"the domain 'NA' in 1 row of {path} {text} domain")
    assert dataset.notes == notes


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
