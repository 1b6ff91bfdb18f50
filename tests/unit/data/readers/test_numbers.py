"""Numbers and dates as people write them, detected per column."""

from datetime import datetime

import pyarrow as pa
import pytest

from holdfast.data.readers.numbers import NumberForm, detect_date_form, detect_form


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
