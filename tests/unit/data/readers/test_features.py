"""Columns of several kinds in one table."""

import numpy as np
import pandas as pd
import pytest

from holdfast.core.errors import BadInput
from holdfast.core.table import Column, TableRows
from holdfast.data.dataset import join
from holdfast.data.raw import Concat, Subset, Table
from holdfast.data.readers import features
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.in_memory import read_frame
from holdfast.data.readers.tables import read_table

ROWS = 12
FRAME = pd.DataFrame(
    {
        "age": [40.0, None, *range(50, 60)],
        "colour": ["red", "blue", None, *["red", "blue", "green"] * 3],
        "smoker": [True, None, *[False, True] * 5],
        "visit": pd.to_datetime(["2024-01-01", None, *["1970-01-03"] * 10]),
        "serial": [f"s{i}" for i in range(ROWS)],
        "unit": ["mm"] * ROWS,
        "label": ["x", "y"] * 6,
        "domain": ["a"] * 6 + ["b"] * 6,
    }
)


def table_of(dataset) -> TableRows:
    rows = dataset.raw.take(np.arange(len(dataset)))
    assert isinstance(rows, TableRows)
    return rows


def write(folder, suffix):
    path = folder / f"data{suffix}"
    if suffix == ".parquet":
        FRAME.to_parquet(path)
    elif suffix == ".jsonl":
        FRAME.to_json(path, orient="records", lines=True, date_format="iso")
    else:
        FRAME.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", "frame"])
def test_kinds_are_inferred_and_shown(tmp_path, suffix):
    dataset = read_frame(FRAME) if suffix == "frame" else read_table(write(tmp_path, suffix))
    table = table_of(dataset)
    assert {column.name: column.kind for column in table.schema} == {
        "age": "number", "colour": "category", "smoker": "boolean", "visit": "date",
    }  # fmt: skip
    assert dataset.columns == ("age", "colour", "smoker", "visit")
    assert table.schema[1].categories == ("red", "blue", "green")
    assert table.codes[:4, 0].tolist() == [0, 1, -1, 0]
    assert table.numbers[1].isnan().all()
    assert table.numbers[2].tolist() == [50, 0, 2]  # age, smoker, days since 1970
    assert "number: age" in dataset.notes[0]
    assert "category: colour" in dataset.notes[0]
    assert "'serial' (12 distinct values in 12 rows, like an identifier" in dataset.notes[1]
    assert "'unit' (a single value)" in dataset.notes[1]


def test_the_user_overrides_kinds_and_leaves_columns_out(tmp_path):
    path = write(tmp_path, ".csv")
    columns = {"category": "age,serial", "ignore": "visit,unit", "number": "smoker"}
    table = table_of(read_table(path, ReadOptions(columns=columns)))
    assert [(column.name, column.kind) for column in table.schema] == [
        ("age", "category"), ("colour", "category"), ("smoker", "number"), ("serial", "category"),
    ]  # fmt: skip
    assert table.schema[0].categories[0] == "40"  # 40.0 and 40 are the same category
    named = read_table(path, ReadOptions(columns={"features": "colour"}))
    assert named.columns == ("colour",)
    with pytest.raises(BadInput, match=r"column 'colour' has 'red' .*expected a date such as 2024-01-31"):
        read_table(path, ReadOptions(columns={"date": "colour"}))


def test_a_text_column_is_the_input_unless_features_are_named(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("text,stars,label,domain\ngood,1,x,a\n,2,y,b\n")
    with pytest.raises(BadInput, match="row 2, column 'text' has no text"):
        read_table(path)
    path.write_text("text,stars,label,domain\ngood,1,x,a\nbad,2,y,b\n")
    plain = read_table(path)
    assert plain.raw.kind == "text"
    assert plain.notes == ("not used: 'stars' (the input is 'text'; --column features=NAME adds it)",)
    path.write_text("text,stars,label,domain\ngood,1,x,a\n,2,y,b\n")
    mixed = read_table(path, ReadOptions(columns={"text": "text", "features": "stars"}))
    assert mixed.raw.kind == "mixed"
    assert table_of(mixed).companion == ["good", ""]


def test_free_text_next_to_numbers_is_recognised():
    texts = [f"the patient number {i} feels well" for i in range(30)]
    frame = pd.DataFrame({"a": range(30), "report": texts, "label": [0, 1] * 15, "domain": ["x", "y", "z"] * 10})
    dataset = read_frame(frame)
    assert dataset.raw.kind == "mixed"
    assert table_of(dataset).companion[3] == texts[3]
    assert "text: report" in dataset.notes[0]
    only = read_frame(frame.drop(columns="a"))
    assert only.raw.kind == "text"
    assert only.columns is None


def test_too_many_categories(monkeypatch):
    monkeypatch.setattr(features, "MANY", 5)
    frame = FRAME.assign(code=[f"c{i % 7}" for i in range(ROWS)])
    assert "'code' (more than 5 distinct values)" in read_frame(frame).notes[1]
    with pytest.raises(BadInput, match="column 'code' has more than 5 categories"):
        read_frame(frame, ReadOptions(columns={"category": "code"}))


def test_no_usable_column_is_an_error():
    frame = FRAME[["serial", "unit", "label", "domain"]]
    with pytest.raises(BadInput, match=r"no text column and no other input.*'unit' \(a single value\)"):
        read_frame(frame)


def test_joined_tables_share_categories():
    first, second = read_frame(FRAME), read_frame(FRAME.assign(domain="c", colour=["pink", "red", None] * 4))
    rows = join([first, second]).raw.take(np.asarray([12, 0, 13, 14, 1]))
    assert rows.schema[1].categories == ("red", "blue", "green", "pink")
    assert rows.codes[:, 0].tolist() == [3, 0, 0, -1, 1]
    other = read_frame(FRAME.drop(columns="age").assign(domain="c"))
    with pytest.raises(BadInput, match="cannot be joined"):
        join([first, other])


def test_digests_depend_on_names_and_not_on_codes():
    schema = (Column("a", "number"), Column("c", "category", ("x", "y")))
    swapped = (schema[0], Column("c", "category", ("y", "x")))
    numbers = np.asarray([[1.0], [np.nan]])
    one, other = Table(schema, numbers, np.asarray([[0], [-1]])), Table(swapped, numbers, np.asarray([[1], [-1]]))
    rows = np.arange(2)
    assert one.digest(rows) == other.digest(rows) != Table(schema, numbers, np.asarray([[1], [-1]])).digest(rows)
    assert Concat([one, other]).digest(rows) == one.digest(rows)
    assert Subset(other, np.asarray([1])).take(np.asarray([0])).codes.tolist() == [[-1]]


def test_recoded_rows_mark_unknown_categories():
    schema = (Column("a", "number"), Column("c", "category", ("x", "y")))
    rows = Table(schema, np.zeros((3, 1)), np.asarray([[0], [1], [-1]])).take(np.arange(3))
    learned = (Column("c", "category", ("y", "z")), Column("a", "number"))
    assert rows.recoded(learned).codes.tolist() == [[-2], [0], [-1]]
    with pytest.raises(KeyError):
        rows.recoded((Column("b", "number"),))
