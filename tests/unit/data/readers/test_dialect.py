"""Separators and encodings of csv files are detected, and the user is informed of what was detected."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.readers import dialect
from holdfast.data.readers.dialect import detect_dialect
from holdfast.data.readers.tables import read_table

ROWS = [["text", "label", "domain"], ["café, 5 € – ok", "pos", "films"], ["so-so", "neg", "books"]]


def put(folder, content: str, *, name="data.csv", encoding="utf-8", mark=b""):
    path = folder / name
    path.write_bytes(mark + content.encode(encoding))
    return path


def rows(separator: str, end: str = "\n") -> str:
    quoted = [[f'"{value}"' if separator in value else value for value in row] for row in ROWS]
    return "".join(separator.join(row) + end for row in quoted)


@pytest.mark.parametrize("name", ["data.csv", "data.tsv"])
@pytest.mark.parametrize(("separator", "word"), list(dialect.SEPARATOR_NAMES.items()))
def test_separators(tmp_path, name, separator, word):
    dataset = read_table(put(tmp_path, rows(separator), name=name))
    assert dataset.raw.take(np.arange(2)) == ["café, 5 € – ok", "so-so"]
    assert (dataset.classes, dataset.domains) == (("neg", "pos"), ("films", "books"))
    expected = dialect.SEPARATORS[name[4:]] == separator
    assert dataset.notes == (() if expected else (f"{name} is read as separated by {word}",))


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("encoding", "mark", "word"),
    [
        ("utf-8", b"", ""),
        ("utf-8-sig", b"", ""),
        ("cp1252", b"", "Windows-1252"),
        ("cp1252", b"\xef\xbb\xbf", "Windows-1252"),
        ("utf-16", b"", "UTF-16"),
    ],
)
def test_encodings_of_spreadsheets(tmp_path, separator, end, encoding, mark, word):
    dataset = read_table(put(tmp_path, rows(separator, end), encoding=encoding, mark=mark))
    assert dataset.raw.take(np.arange(2)) == ["café, 5 € – ok", "so-so"]
    assert dataset.domains == ("films", "books")
    assert [note for note in dataset.notes if "UTF-8" in note] == (
        [f"data.csv is not UTF-8 and is read as {word}"] if word else []
    )


@pytest.mark.parametrize(
    ("content", "separator"),
    [
        ("text,label,domain\na;b,c,d\n", ","),
        ("text, or more;label;domain\na;b;c\nd;e;f\n", ";"),  # a comma only in the header
        ("text,label,domain\na\n", ","),  # a damaged row is reported as such
        ('"text;label",domain\na,b\n', ","),
        ("text\none; two\n", ","),
        ("text;label;domain\n1,5;2,5;3,5\n", ";"),
        ('text;label;domain\n"a\nb;c";d;e\n', ";"),
        ("a|b|c\n1|2|3\n", "|"),
        ("", ","),
    ],
)
def test_ambiguous_separators(tmp_path, content, separator):
    assert detect_dialect(put(tmp_path, content)).separator == separator


def test_single_damaged_bytes_do_not_change_the_encoding(tmp_path):
    path = put(tmp_path, "text,label,domain\nünï,x,d\nö,x,d\n")
    path.write_bytes(path.read_bytes() + b"\xe9,y,d\n")
    with pytest.raises(BadInput, match="not UTF-8 \\(row 3\\)"):
        read_table(path)


def test_encoding_is_detected_after_the_first_block(tmp_path, monkeypatch):
    monkeypatch.setattr(dialect, "_BLOCK", 7)
    for text, encoding in (("é" * 40, "utf-8"), ("€" * 41, "utf-8"), ("x" * 40 + "é", "cp1252"), ("🙂" * 9, "utf-8")):
        path = put(tmp_path, f"text,label,domain\n{text},x,d\n", encoding=encoding, name=f"{len(text)}.csv")
        assert detect_dialect(path).encoding == encoding
        assert read_table(path).raw.take(np.array([0])) == [text]


def test_a_changed_file_is_examined_again(tmp_path):
    path = put(tmp_path, rows(","))
    assert detect_dialect(path).separator == ","
    put(tmp_path, rows(";") + "more;pos;films\n")
    assert detect_dialect(path).separator == ";"
