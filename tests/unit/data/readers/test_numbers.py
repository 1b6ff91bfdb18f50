"""Numbers and dates as people write them, and texts that repeat among them."""

from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers import formats
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.numbers import NumberForm, detect_date_form, detect_form
from holdfast.data.readers.tables import read_table, table_chunks


@pytest.mark.parametrize(
    ("values", "form", "numbers"),
    [
        (["1.5", "-2", ".5", "1.", "1e3"], NumberForm(), [1.5, -2, 0.5, 1, 1000]),
        (["1,5", "2,25", "3"], NumberForm(","), [1.5, 2.25, 3]),
        (["+1,5", "−2,0"], NumberForm(","), [1.5, -2]),
        (["12%", "3.5 %"], NumberForm(unit="%"), [0.12, 0.035]),
        (["$1,234.50", "-$3"], NumberForm(thousands=",", unit="$"), [1234.5, -3]),
        (["1.234,50 €", "2,00 €"], NumberForm(",", ".", "€"), [1234.5, 2]),
        (["EUR 5", "EUR 9"], NumberForm(unit="EUR"), [5, 9]),
        (["1'234.5", "2"], NumberForm(thousands="'"), [1234.5, 2]),
        (["1 234,5", "2\u00a0345"], NumberForm(",", " "), [1234.5, 2345]),
        (["1.234.567", "2.000"], NumberForm(",", "."), [1234567, 2000]),
        (["1,234,567", "12"], NumberForm(thousands=","), [1234567, 12]),
        (["3,14", "1,000", "2,718"], NumberForm(","), [3.14, 1, 2.718]),
        (["1.5", "2.5", "1,5"], NumberForm(), [1.5, 2.5, None]),  # another decimal mark is a bad cell
        (["$5", "$6", "€7"], NumberForm(unit="$"), [5, 6, None]),  # so is another currency
        (["5%", "6%", "0.07"], NumberForm(unit="%"), [0.05, 0.06, None]),
        (["1", "2", "x", "3"], NumberForm(), [1, 2, None, 3]),
    ],
)
def test_numbers(values, form, numbers):
    detected = detect_form(values)
    assert detected == form
    assert detected.parse(pa.array(values)).to_pylist() == numbers


@pytest.mark.parametrize(
    "values", [["red", "blue"], ["1", "a", "b"], [], [""], ["1.2.3.4"], ["1,23,456"], ["2024-01-31"], ["$5 USD"]]
)
def test_other_texts_are_no_numbers(values):
    assert detect_form(values) is None


def test_ambiguous_commas_follow_the_separator_of_the_file():
    assert detect_form(["1,234", "2,345"]) == NumberForm(thousands=",")
    assert detect_form(["1,234", "2,345"], decimal=",") == NumberForm(",")
    assert detect_form(["1,234", "2,5"]) == NumberForm(",")


@pytest.mark.parametrize(
    ("values", "example", "dates"),
    [
        (["2024-01-31", "2024-02-01 10:30"], "2024-01-31", [(2024, 1, 31), (2024, 2, 1, 10, 30)]),
        (["31.12.2020", "1.2.2021"], "31.01.2024", [(2020, 12, 31), (2021, 2, 1)]),
        (["12/31/2020", "01/02/2021"], "01/31/2024", [(2020, 12, 31), (2021, 1, 2)]),
        (["31/12/2020", "01/02/2021"], "31/01/2024", [(2020, 12, 31), (2021, 2, 1)]),
        (["2020/12/31", "2021/1/2"], "2024/01/31", [(2020, 12, 31), (2021, 1, 2)]),
        (["2024-01-31", "2024-01-30", "31.01.2024"], "2024-01-31", [(2024, 1, 31), (2024, 1, 30), None]),
        (["2024-02-28", "2024-02-29", "2024-02-30"], "2024-01-31", [(2024, 2, 28), (2024, 2, 29), None]),
    ],
)
def test_dates(values, example, dates):
    form = detect_date_form(values)
    assert form.example == example
    assert form.parse(pa.array(values)).to_pylist() == [None if date is None else datetime(*date) for date in dates]


@pytest.mark.parametrize("values", [["1.5", "2.5"], ["soon"], [], ["2024-01-31", "31.01.2024"]])
def test_other_texts_are_no_dates(values):
    assert detect_date_form(values) is None


ROWS = 400


def table(folder, cells, *, name="data.csv", head="m", more=""):
    """Write one column with these cells next to a number, a label and a domain."""
    lines = [f"{cell}{more},{i % 97}.5,{'np'[i % 2]},{'ab'[i // 2 % 2]}" for i, cell in enumerate(cells)]
    path = folder / name
    path.write_text("\n".join([f"{head},other,label,domain", *lines]) + "\n")
    return path


def column(path, **options):
    dataset = read_table(path, ReadOptions(**options))
    rows = dataset.raw.take(np.arange(len(dataset)))
    return dataset, next(c for c in rows.schema if c.name == "m"), rows


def every(count, text, value=lambda i: i % 5):
    """Numbers, with a text in every `count`-th row."""
    return [text if i % count == 0 else value(i) for i in range(ROWS)]


@pytest.mark.parametrize(
    ("cells", "share"),
    [
        (every(3, "5+"), "34%"), (every(20, "other"), "5%"), (every(80, "K"), "1%"), ([*every(3, "<1"), "K"], "34%"),
        (["APPR" if i in (350, 390) else 1 + i % 3 for i in range(150)] + ["APPR", "APPR"] + [1] * 18, "1%"),
    ],
)  # fmt: skip
def test_few_numbers_with_texts_are_categories(tmp_path, cells, share):
    dataset, read, _ = column(table(tmp_path, cells))
    assert read.kind == "category"
    assert set(read.categories) == {str(cell) for cell in cells}
    (note,) = (note for note in dataset.notes if "read as categories" in note)
    assert note.startswith(f"column 'm' is read as categories, because {share} of its values are texts such as ")
    assert note.endswith("; --column number=m accepts numbers only")


def test_texts_among_many_numbers_are_missing_values(tmp_path):
    cells = [{0: "N/D", 1: ">100"}.get(i % 40, i / 8) for i in range(ROWS)]
    dataset, read, rows = column(table(tmp_path, cells))
    assert read.kind == "number"
    assert np.flatnonzero(rows.numbers[:, 0].isnan()).tolist() == [i for i in range(ROWS) if i % 40 < 2]
    note = "'N/D' and other texts in 20 cells of column 'm' is read as missing; --column category=m reads categories"
    assert note in dataset.notes
    assert dataset.forms["m"].missing == ("N/D", ">100")
    with pytest.raises(BadInput, match=r"column 'm' has 'N/D' \(row 1\), '>100' \(row 2\).*expected a number"):
        read_table(table(tmp_path, cells), ReadOptions(columns={"number": "m"}))
    _, read, _ = column(table(tmp_path, cells), columns={"category": "m"})
    assert read.kind == "category"


def test_codes_of_dates_and_of_other_forms_are_missing_values(tmp_path):
    days = [f"{1 + i % 28:02d}.{1 + i % 12:02d}.{2000 + i % 9}" if i % 50 else "unknown" for i in range(ROWS)]
    dataset, read, rows = column(table(tmp_path, days))
    assert (read.kind, int(rows.numbers[:, 0].isnan().sum())) == ("date", 8)
    assert {"column 'm' is read as dates such as 31.01.2024",
            "'unknown' in 8 cells of column 'm' is read as missing; --column category=m reads categories",
            } <= set(dataset.notes)  # fmt: skip
    prices = [f'"{i},25 €"' if i % 50 else "on request" for i in range(ROWS)]
    _, read, rows = column(table(tmp_path, prices))
    assert (read.kind, rows.numbers[1, 0].item()) == ("number", 1.25)


@pytest.mark.parametrize(
    "cells",
    [
        ["seven" if i == 9 else "nine" if i == 30 else i % 7 for i in range(ROWS)],  # typos
        ["2,5" if i % 10 == 0 else i / 8 for i in range(ROWS)],  # another decimal mark
    ],
)
def test_rare_texts_and_other_forms_are_bad_cells(tmp_path, cells):
    cells = [f'"{cell}"' for cell in cells]
    with pytest.raises(BadInput, match=r"expected a number.*--skip-bad, or read them as categories with --column cat"):
        read_table(table(tmp_path, cells))


def test_frames_have_codes_as_well():
    numbers = [str(i / 8) if i % 20 else "N/D" for i in range(ROWS)]
    prices = [f"{i},25 €" if i % 20 else "on request" for i in range(ROWS)]
    frame = pd.DataFrame({"m": numbers, "price": prices, "k": [str(i % 5) if i % 9 else "K" for i in range(ROWS)]})
    frame = frame.assign(label=["n", "p"] * (ROWS // 2), domain=list("aabb") * (ROWS // 4))
    dataset = load_data(frame)
    rows = dataset.raw.take(np.arange(ROWS))
    assert [(c.name, c.kind) for c in rows.schema] == [("m", "number"), ("price", "number"), ("k", "category")]
    assert rows.numbers[1].tolist() == [0.125, 1.25]
    assert rows.numbers.isnan().sum(0).tolist() == [20, 20]


def test_many_different_texts_are_names(tmp_path):
    cells = [f"PC {i}" if i % 4 == 0 else 10_000 + 7 * i for i in range(ROWS)]
    dataset = read_table(table(tmp_path, cells))
    assert any("'m' (400 distinct values in 400 rows, like an identifier" in note for note in dataset.notes)
    assert "column 'm' is read as names, because 25% of its values are different texts such as 'PC 0'" in dataset.notes


def test_texts_after_the_first_block_decide_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "HEAD", 512)
    monkeypatch.setattr(formats, "BLOCK", 512)
    cells = [i % 5 if i < ROWS - 50 else "K" for i in range(ROWS)]
    dataset, read, _ = column(table(tmp_path, cells))
    assert read.categories == ("0", "1", "2", "3", "4", "K")
    assert len(dataset) == ROWS
    cells = [f"2024-01-{1 + i % 28:02d}T01:00:00Z,{'K' if i > 300 else i % 5}" for i in range(ROWS)]
    _, read, rows = column(table(tmp_path, cells, head="day,m"))
    assert (read.kind, rows.schema[0].kind) == ("category", "date")


def test_a_stream_of_rows_reads_no_other_rows(tmp_path):
    path = table(tmp_path, every(3, "5+"))
    with pytest.raises(BadInput, match="134 bad cells"):
        list(table_chunks(path, ReadOptions(need=()), rows=50))
