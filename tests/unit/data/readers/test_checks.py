"""Bad cells: one error lists all of them, and `skip_bad` leaves their rows out and counts them."""

import json

import numpy as np
import pandas as pd
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_chunks, load_data
from holdfast.data.readers import formats
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.tables import read_table, table_chunks

HEAD = "text,label,domain\n"
GOOD = [f"text {i},{'np'[i % 2]},{'ab'[i // 2 % 2]}" for i in range(8)]


def put(folder, lines, *, head=HEAD, name="data.csv"):
    path = folder / name
    path.write_text(head + "".join(f"{line}\n" for line in lines))
    return path


def test_all_bad_cells_are_listed_at_once(tmp_path):
    path = put(tmp_path, [*GOOD, ",p,a", "x,,a", "y,n", "z,n, ", *GOOD, "w,,"])
    with pytest.raises(BadInput) as caught:
        read_table(path)
    assert str(caught.value) == (
        f"{path} has 6 bad cells in 5 rows: column 'text' has no text (row 9); "
        "column 'label' has no label (rows 10, 21); has 2 values but the header names 3 columns (row 11); "
        "column 'domain' has no domain (rows 12, 21): fix them, or leave such rows out with --skip-bad"
    )
    dataset = read_table(path, ReadOptions(skip_bad=True))
    assert len(dataset) == 16
    assert dataset.file_rows.tolist() == [*range(1, 9), *range(13, 21)]
    (note,) = dataset.notes
    assert note.startswith(f"--skip-bad: 5 of 21 rows of {path} are left out (2 in column 'label' has no label; ")


def test_twenty_cells_are_shown_and_the_others_counted(tmp_path):
    path = put(tmp_path, [*GOOD, *(f"t {i},,a" for i in range(3000))])
    with pytest.raises(BadInput) as caught:
        read_table(path)
    message = str(caught.value)
    assert "3,000 bad cells in 3,000 rows" in message
    assert f"(rows {', '.join(map(str, range(9, 29)))}); and 2,980 more" in message
    assert len(message) < 800


def test_bad_numbers_are_listed_with_their_values(tmp_path):
    rows = [f"{i}.5,{i},{'np'[i % 2]},d" for i in range(40)]
    rows[3], rows[30], rows[35] = "n/a?,3,p,d", "30.5,inf,n,d", "35.5,many words that are longer than a number,p,d"
    path = put(tmp_path, rows, head="a,b,label,domain\n")
    with pytest.raises(BadInput) as caught:
        read_table(path)
    message = str(caught.value)
    assert "3 bad cells in 3 rows: column 'a' has 'n/a?' (row 4), expected a number" in message
    assert "column 'b' has 'inf' (row 31), 'many words that are longer ...' (row 36), expected a number" in message
    assert len(read_table(path, ReadOptions(skip_bad=True))) == 37


def test_a_bad_number_after_the_first_block_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "HEAD", 256)
    monkeypatch.setattr(formats, "BLOCK", 256)
    rows = [f"{i},{i}.5,{'np'[i % 2]},d" for i in range(200)]
    rows[150], rows[170] = "150,x,n,d", "y,170.5,n,d"
    path = put(tmp_path, rows, head="a,b,label,domain\n")
    with pytest.raises(BadInput, match=r"column 'b' has 'x' \(row 151\).*column 'a' has 'y' \(row 171\)"):
        read_table(path)
    assert len(read_table(path, ReadOptions(skip_bad=True))) == 198
    chunks = list(table_chunks(path, ReadOptions(skip_bad=True, need=()), rows=7))
    assert [len(chunk) for chunk in chunks] == [7] * 28 + [2]
    numbers = np.concatenate([chunk.raw.take(np.arange(len(chunk))).numpy() for chunk in chunks])
    assert numbers[:, 0].tolist() == [i for i in range(200) if i not in (150, 170)]
    with pytest.raises(BadInput, match="2 bad cells"):
        list(table_chunks(path, ReadOptions(need=()), rows=7))


def test_bad_json_rows(tmp_path):
    good = [json.dumps({"text": f"t {i}", "label": "np"[i % 2], "domain": "d"}) for i in range(4)]
    bad = [
        '{"text": 5, "label": ["n"], "domain": "d"}',
        "nonsense",
        "[1]",
        '{"text": " ", "label": "n", "domain": "d"}',
    ]
    path = put(tmp_path, [*good, *bad, *good], head="", name="data.jsonl")
    with pytest.raises(BadInput) as caught:
        read_table(path)
    message = str(caught.value)
    assert (
        "5 bad cells in 4 rows: column 'text' has 5 (row 5), expected a text; column 'label' has ['n'] (row 5)"
        in message
    )
    assert "is not a JSON object (row 7); column 'text' has no text (row 8)" in message
    dataset = read_table(path, ReadOptions(skip_bad=True))
    assert dataset.file_rows.tolist() == [1, 2, 3, 4, 9, 10, 11, 12]


def test_unknown_splits_and_frames(tmp_path):
    path = put(tmp_path, ["a,n,d,train", "b,p,d,holdout", "c,p,d,", "d,n,d,test"], head="text,label,domain,split\n")
    with pytest.raises(BadInput, match=r"2 bad cells.*has the split 'holdout' \(row 2\), the split '' \(row 3\)"):
        read_table(path)
    dataset = read_table(path, ReadOptions(skip_bad=True))
    assert dataset.split.tolist() == [0, 2]
    frame = pd.DataFrame({"text": ["a", None, "c", "d"], "label": ["n", "p", None, "p"], "domain": list("xyxy")})
    with pytest.raises(BadInput, match=r"DataFrame has 2 bad cells in 2 rows: column 'text'.*row 2.*'label'.*row 3"):
        load_data(frame)
    assert len(load_data(frame, skip_bad=True)) == 2


def test_every_row_is_bad(tmp_path):
    path = put(tmp_path, ["a,,d", "b,,d"])
    with pytest.raises(BadInput, match="every row has a bad cell, so that none is left"):
        read_table(path, ReadOptions(skip_bad=True))


def test_other_data_has_no_rows_to_skip(tmp_path):
    np.savez(tmp_path / "x.npz", X=np.zeros((2, 2)), y=[0, 1], domain=["a", "b"])
    with pytest.raises(BadInput, match="--skip-bad leaves rows of a table out"):
        load_data(tmp_path / "x.npz", skip_bad=True)
    with pytest.raises(BadInput, match="--with copies columns of a table"):
        list(load_chunks(tmp_path / "x.npz", rows=2, carry=["a"]))


def test_columns_are_carried_unchanged(tmp_path):
    rows = [f"{i},n{i},{i},p,{'' if i == 4 else 'x'}" for i in range(9)]
    path = put(tmp_path, rows, head="a,note,price,label,domain\n")
    chunks = list(load_chunks(path, rows=3, carry=["note", "price"], skip_bad=True, columns={"features": "a"}))
    carried = [chunk.carried for chunk in chunks]
    assert [table.column_names for table in carried if table is not None] == [["note", "price"]] * 3
    notes = [name for table in carried if table is not None for name in table["note"].to_pylist()]
    assert notes == [f"n{i}" for i in range(9) if i != 4]
    part = chunks[0].subset(np.array([2, 0])).carried
    assert part["price"].to_pylist() == ["2", "0"]
