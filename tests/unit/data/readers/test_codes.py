"""Names that differ only in case or spaces are reported, never merged without a note."""

import pyarrow as pa
import pytest

from holdfast.data.load import load_data
from holdfast.data.readers.codes import CodeColumn, spelling_notes
from holdfast.data.readers.table import read_table

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
