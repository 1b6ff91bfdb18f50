"""Excel files: sheets, kinds of columns, missing cells and bad files; and tables of pyarrow and polars."""

import builtins
import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_chunks, load_data
from holdfast.data.raw import Table

ROWS = [
    [60 + i % 7, ["red", "blue", None][i % 3], i % 2 == 0, datetime.datetime(2024, 1, 1 + i), ["yes", "no"][i % 2],
     ["a", "b"][i % 2]]
    for i in range(12)
]  # fmt: skip
NAMES = ["weight", "colour", "smoker", "visit", "label", "domain"]


def write(path, rows=ROWS, names=NAMES, sheets=("patients",)):
    openpyxl = pytest.importorskip("openpyxl", reason="needs openpyxl: pip install 'holdfast[excel]'")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for sheet in sheets:
        page = book.create_sheet(sheet)
        for row in [names, *rows]:
            page.append(row)
    book.save(path)
    return path


def check(dataset) -> None:
    assert isinstance(dataset.raw, Table)
    kinds = {column.name: column.kind for column in dataset.raw.schema}
    assert kinds == {"weight": "number", "colour": "category", "smoker": "boolean", "visit": "date"}
    assert dataset.raw.numbers[:, 0].tolist() == [row[0] for row in ROWS]
    assert (dataset.raw.codes[:, 0] < 0).tolist() == [row[1] is None for row in ROWS]
    assert dataset.classes == ("no", "yes")


def test_a_sheet_is_read_with_its_kinds(tmp_path):
    rows = [*ROWS[:5], [None] * 6, *ROWS[5:]]
    dataset = load_data(write(tmp_path / "patients.xlsx", rows))
    check(dataset)
    assert dataset.name == "patients"
    chunks = list(load_chunks(tmp_path / "patients.xlsx", rows=5))
    assert [len(chunk) for chunk in chunks] == [5, 5, 2]


def test_columns_of_a_sheet_are_carried_and_rows_keep_their_numbers(tmp_path):
    rows = [*ROWS[:4], [*ROWS[4][:5], None], *ROWS[5:]]
    path = write(tmp_path / "p.xlsx", rows, sheets=("first", "second"))
    for data in (path, f"{path}@sheet=second"):
        chunks = list(load_chunks(data, rows=5, carry=["colour", "weight"], skip_bad=True))
        tables = [chunk.carried for chunk in chunks if chunk.carried is not None]
        assert [table.column_names for table in tables] == [["colour", "weight"]] * 3
        assert [value for table in tables for value in table["colour"].to_pylist()] == [
            row[1] for i, row in enumerate(ROWS) if i != 4
        ]
        numbers = [int(row) for chunk in chunks if chunk.file_rows is not None for row in chunk.file_rows]
        assert numbers == [row for row in range(1, 13) if row != 5]
    with pytest.raises(BadInput, match=r"has no column 'nope': it has 'weight', .*; fix --with"):
        list(load_chunks(path, rows=5, carry=["nope"], skip_bad=True))
    with pytest.raises(BadInput, match=r"p.xlsx@carry=colour|setting of"):
        load_data(f"{path}@carry=colour")


def test_sheets_are_named(tmp_path):
    path = write(tmp_path / "p.xlsx", sheets=("first", "second"))
    assert "the sheet 'first' of 2 is read; p.xlsx@sheet=NAME reads another" in load_data(path).notes
    check(load_data(f"{path}@sheet=second"))
    with pytest.raises(BadInput, match=r"has no sheet 'third': it has 'first', 'second'; fix p.xlsx@sheet=third"):
        load_data(f"{path}@sheet=third")


def test_bad_files_are_one_sentence(tmp_path):
    (tmp_path / "text.xlsx").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match=r"is not a valid Excel file .*: save it again as .xlsx or as .csv"):
        load_data(tmp_path / "text.xlsx")
    with pytest.raises(BadInput, match="the sheet 'patients' has a header but no rows"):
        load_data(write(tmp_path / "empty.xlsx", []))
    with pytest.raises(BadInput, match="column 1 of the sheet 'patients' has no name"):
        load_data(write(tmp_path / "unnamed.xlsx", names=[None, *NAMES[1:]]))
    with pytest.raises(BadInput, match=r"two columns named 'label': rename one of them"):
        load_data(write(tmp_path / "twice.xlsx", names=["label", *NAMES[1:]]))
    bad = [*ROWS, [60, "red", True, None, None, "a"]]
    with pytest.raises(BadInput, match=r"bad.xlsx"):
        load_data(write(tmp_path / "bad.xlsx", bad))
    assert len(load_data(tmp_path / "bad.xlsx", skip_bad=True)) == 12


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    path, real = write(tmp_path / "p.xlsx"), builtins.__import__

    def without(name, *args, **options):
        if name == "openpyxl":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r"needs openpyxl: pip install 'holdfast\[excel\]'"):
        load_data(path)


@pytest.mark.parametrize("library", ["pandas", "pyarrow", "polars"])
def test_tables_in_memory_are_equal(library):
    frame = pd.DataFrame(ROWS, columns=NAMES)
    if library == "polars":
        frame = pytest.importorskip("polars", reason="needs polars: pip install polars").from_pandas(frame)
    check(load_data(pa.Table.from_pandas(frame) if library == "pyarrow" else frame))


@pytest.mark.parametrize("library", ["pandas", "pyarrow", "polars"])
def test_estimators_take_tables(library):
    from holdfast import DomainRegressor

    frame = pd.DataFrame(ROWS * 3, columns=NAMES)
    inputs, y = frame[["weight", "colour"]], frame["weight"] * 2.0
    if library == "polars":
        inputs = pytest.importorskip("polars", reason="needs polars: pip install polars").from_pandas(inputs)
    inputs = pa.Table.from_pandas(inputs) if library == "pyarrow" else inputs
    model = DomainRegressor("ridge", encoder="columns", device="cpu").fit(inputs, y, domains=frame["domain"])
    assert np.sqrt(np.mean((model.predict(inputs) - y) ** 2)) < y.std()
