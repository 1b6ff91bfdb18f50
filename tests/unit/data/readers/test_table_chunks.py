import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_chunks
from holdfast.data.readers import formats
from holdfast.data.readers.table import read_table, table_chunks
from holdfast.data.synthetic import world


def write(path, n=23, long_at=None):
    lines = ["id,text,label,domain"]
    lines += [f"{'k'}{i},{'w' * (3000 if i == long_at else 3)} {i},{i % 3},{'ab'[i % 2]}" for i in range(n)]
    path.write_text("\n".join(lines) + "\n")
    return path


def texts(made):
    return [text for each in made for text in each.raw.take(np.arange(len(each)))]


@pytest.mark.parametrize("rows", [1, 5, 23, 100])
def test_chunks_are_the_complete_table(tmp_path, rows):
    path = write(tmp_path / "t.csv")
    found, whole = list(table_chunks(path, rows=rows)), read_table(path)
    assert [len(each) for each in found] == [min(rows, 23 - i) for i in range(0, 23, rows)]
    assert texts(found) == texts([whole])
    assert [i for each in found for i in each.ids] == list(whole.ids)
    labels = [each.classes[y] for each in found for y in each.y]
    assert labels == [whole.classes[y] for y in whole.y]


def test_blocks_may_end_anywhere(tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv")
    monkeypatch.setattr(formats, "BLOCK", 64)
    assert [len(each) for each in table_chunks(path, rows=4)] == [4, 4, 4, 4, 4, 3]


def test_late_long_row_repeats_no_row(tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv", long_at=17)
    monkeypatch.setattr(formats, "BLOCK", 1024)
    found = list(table_chunks(path, rows=4))
    assert texts(found) == texts([read_table(path)])


def test_invalid_row_is_reported_with_its_number_in_the_file(tmp_path):
    path = write(tmp_path / "t.csv")
    path.write_text(path.read_text() + "k23,,0,a\n")
    made = table_chunks(path, rows=5)
    with pytest.raises(BadInput, match="row 24, column 'text' has no text"):
        list(made)


def test_other_data_is_chunked(tmp_path):
    data = world("vector", "none", domains=2, size=10, classes=2)
    np.savez(tmp_path / "v.npz", X=data.raw.take(np.arange(20)).numpy())
    found = list(load_chunks(tmp_path / "v.npz", rows=8))
    assert [len(each) for each in found] == [8, 8, 4]
    np.testing.assert_array_equal(
        np.concatenate([each.raw.take(np.arange(len(each))) for each in found]), data.raw.take(np.arange(20))
    )
