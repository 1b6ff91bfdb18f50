"""Forms of numbers and dates that were detected at training are stored with the model and read predictions."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.forms import ModelColumns, from_json, to_json
from holdfast.data.readers.numbers import FORMS, NumberForm
from holdfast.data.readers.tables import read_table
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import load_model
from holdfast.prediction.predict import predict
from holdfast.train.training_data import training_data

HEAD = "price,share,visit,size,label,domain"


def line(i: int) -> str:
    """A row with points between thousands, percent signs and dates that begin with the day."""
    price = f"{1 + i % 9}.{(137 * i) % 1000:03d},5"
    return f'"{price}",{i % 90 + 1}%,{i % 28 + 1:02d}/{i % 12 + 1:02d}/2024,{i % 7},{"np"[i % 2]},{"ab"[i // 2 % 2]}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that was trained on such rows."""
    place = tmp_path_factory.mktemp("forms")
    path = place / "train.csv"
    path.write_text("\n".join([HEAD, *map(line, range(60))]) + "\n")
    dataset = training_data(path)
    assert set(dataset.forms) == {"price", "share", "visit"}
    model = DomainClassifier(method="erm", steps=2, device="cpu").fit_dataset(dataset)
    return model.save_pretrained(place / "model")


def rows_read(folder, path) -> dict[str, list[float]]:
    """Return the numbers that the model's reader finds in a file."""
    saved = load_model(folder)
    dataset = saved.align(read_table(path, ReadOptions(columns=saved.read_columns(None), need=())))
    rows = dataset.raw.take(np.arange(len(dataset)))
    return dict(zip([column.name for column in rows.schema], rows.numbers.T.tolist(), strict=True))


def test_ambiguous_files_are_read_as_in_training(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    assert config["forms"] == {
        "price": {"decimal": ",", "thousands": ".", "unit": ""},
        "share": {"decimal": ".", "thousands": "", "unit": "%"},
        "visit": {"date": "31/01/2024"},
    }
    path = tmp_path / "new.csv"
    path.write_text("price,share,visit,size\n1.234,5%,05/02/2024,1\n2.500,6%,07/03/2024,2\n")
    alone = read_table(path, ReadOptions(need=()))  # without the model: 1.234 is a small number, 05/02 may be either
    assert alone.raw.take(np.arange(2)).numbers[:, 0].tolist() == pytest.approx([1.234, 2.5])
    read = rows_read(folder, path)
    assert read["price"] == [1234, 2500]
    assert read["share"] == pytest.approx([0.05, 0.06])
    days = (pd.to_datetime(["2024-02-05", "2024-03-07"]) - pd.Timestamp("1970-01-01")).days.tolist()
    assert read["visit"] == days
    result = predict(folder, path, tmp_path / "out.csv", device="cpu")
    assert result.examples == 2
    assert any("'price' is read as numbers with a decimal comma" in note for note in result.notes)


def test_a_month_first_file_stays_month_first(folder, tmp_path):
    saved = load_model(folder)
    month_first = next(form for form in FORMS if form.first == "month")
    columns = saved.read_columns(None)
    assert isinstance(columns, ModelColumns)
    columns.forms["visit"] = month_first
    path = tmp_path / "new.csv"
    path.write_text("price,share,visit,size\n1.234,5%,05/02/2024,1\n1.234,5%,06/02/2024,1\n")
    dataset = read_table(path, ReadOptions(columns=columns, need=()))
    rows = dataset.raw.take(np.arange(2))
    names = [column.name for column in rows.schema]
    assert rows.numbers[0, names.index("visit")] == (pd.Timestamp("2024-05-02") - pd.Timestamp("1970-01-01")).days


def test_other_forms_are_one_error_with_all_cells(folder, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("price,share,visit,size\n1234.5,5%,05/02/2024,1\n2.500,0.06,13/13/2024,2\n")
    with pytest.raises(BadInput) as caught:
        predict(folder, path, tmp_path / "out.csv", device="cpu")
    message = str(caught.value)
    assert "column 'price' has '1234.5' (row 1), expected a number with a decimal comma and points" in message
    assert "column 'share' has '0.06' (row 2), expected a number with a percent sign (12% is 0.12) as in the" in message
    assert "column 'visit' has '13/13/2024' (row 2), expected a date such as 31/01/2024 as in the" in message
    path.write_text("price,share,visit,size\n1234.5,5%,05/02/2024,1\n2.500,6%,07/03/2024,2\n")
    with pytest.raises(BadInput, match="write the value in this form or remove the row, or leave such rows out"):
        predict(folder, path, tmp_path / "out.csv", device="cpu")
    assert predict(folder, path, tmp_path / "out.csv", device="cpu", skip_bad=True).examples == 1


def test_typed_files_and_unambiguous_dates_need_no_form(folder, tmp_path):
    new = pd.DataFrame(
        {"price": [1234.5, 2.5], "share": [0.05, 0.06], "visit": ["05/02/2024", "2024-03-07"], "size": 1}
    )
    new["visit"] = pd.to_datetime(["2024-02-05", "2024-03-07"])
    new.to_parquet(tmp_path / "new.parquet")
    read = rows_read(folder, tmp_path / "new.parquet")
    assert read["price"] == [1234.5, 2.5]
    (tmp_path / "new.csv").write_text("price,share,visit,size\n1.234,5%,2024-02-05,1\n2.500,6%,2024-03-07,2\n")
    assert rows_read(folder, tmp_path / "new.csv")["visit"] == read["visit"]
    (tmp_path / "new.jsonl").write_text('{"price": "1.234", "share": "5%", "visit": "05/02/2024", "size": 1}\n' * 2)
    texts = rows_read(folder, tmp_path / "new.jsonl")
    assert (texts["price"], texts["visit"]) == ([1234, 1234], [read["visit"][0]] * 2)


def test_vectors_have_forms_without_a_schema_and_no_codes(tmp_path):
    rows = [f'"{i},5",{i % 7},{"np"[i % 2]},{"ab"[i // 2 % 2]}' for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["price,size,label,domain", *rows]) + "\n")
    dataset = training_data(tmp_path / "train.csv")
    assert (dataset.raw.kind, set(dataset.forms)) == ("vector", {"price"})
    folder = DomainClassifier(method="logistic", device="cpu").fit_dataset(dataset).save_pretrained(tmp_path / "model")
    (tmp_path / "new.csv").write_text('price,size\n"1,234",1\n"2,345",2\n')
    saved = load_model(folder)
    assert saved.read_columns({"id": "size"})["id"] == "size"  # pyright: ignore[reportOptionalSubscript]
    read = saved.align(read_table(tmp_path / "new.csv", ReadOptions(columns=saved.read_columns(None), need=())))
    assert read.raw.take(np.arange(2))[:, 0].tolist() == pytest.approx([1.234, 2.345])
    (tmp_path / "new.csv").write_text("price,size\n" + '"1,5",K\n"2,5",3\n"3,5",4\n' * 20)
    with pytest.raises(BadInput, match=r"20 bad cells.*column 'size' has 'K' \(row 1\)"):
        predict(folder, tmp_path / "new.csv", tmp_path / "out.csv", device="cpu")


def test_stored_forms_are_checked(folder, tmp_path):
    forms = {"a": NumberForm(",", ".", "€"), "b": FORMS[2]}
    assert from_json(json.loads(json.dumps(to_json(forms)))) == forms
    wrong = {"decimal": ".*", "thousands": "", "unit": ""}
    for value in ([], {"a": 1}, {"a": {"date": "1 May"}}, {"a": wrong}, {"a": {"decimal": "."}}, {"a": {"date": [1]}}):
        with pytest.raises(TypeError, match=r"config\.json has"):
            from_json(value)
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"forms": {"price": wrong}}))
    with pytest.raises(BadInput, match="is not a valid model folder"):
        load_model(copy)


def test_codes_and_categories_are_read_as_in_training(tmp_path):
    train = tmp_path / "train.csv"
    cells = [f"{'<1' if i % 4 == 0 else i % 4},{'N/D' if i % 10 == 0 else i / 8}" for i in range(600)]
    lines = [f"{cell},{'np'[i % 2]},{'ab'[i // 2 % 2]}" for i, cell in enumerate(cells)]
    train.write_text("\n".join(["hours,size,label,domain", *lines]) + "\n")
    model = DomainClassifier(method="erm", steps=2, device="cpu").fit_dataset(training_data(train))
    folder = model.save_pretrained(tmp_path / "model")
    saved = load_model(folder)
    assert json.loads((folder / "config.json").read_text())["forms"]["size"]["missing"] == ["N/D"]

    def read(path):
        dataset = saved.align(read_table(path, ReadOptions(columns=saved.read_columns(None), need=())))
        rows = dataset.raw.take(np.arange(len(dataset)))
        hours = rows.schema[0].categories
        return [hours[code] for code in rows.codes[:, 0].tolist()], rows.numbers[:, 0].tolist()

    (tmp_path / "new.csv").write_text("hours,size\n1,2.5\n3,4\n")  # digits only
    assert read(tmp_path / "new.csv") == (["1", "3"], [2.5, 4])
    pd.DataFrame({"hours": [1.0, 3.0], "size": [2.5, 4]}).to_parquet(tmp_path / "new.parquet")
    assert read(tmp_path / "new.parquet") == (["1", "3"], [2.5, 4])
    (tmp_path / "new.jsonl").write_text('{"hours": 1, "size": 2.5}\n{"hours": 3, "size": 4}\n')
    assert read(tmp_path / "new.jsonl") == (["1", "3"], [2.5, 4])
    (tmp_path / "new.csv").write_text("hours,size\n<1,N/D\n3,4\n")
    hours, sizes = read(tmp_path / "new.csv")
    assert (hours, np.isnan(sizes).tolist()) == (["<1", "3"], [True, False])
    result = predict(folder, tmp_path / "new.csv", tmp_path / "out.csv", device="cpu")
    assert any("'N/D' in 1 cells of column 'size' is read as missing" in note for note in result.notes)
    (tmp_path / "new.csv").write_text("hours,size\n<1,N/A?\n" * 30)
    with pytest.raises(BadInput, match=r"'N/A\?' \(row 1\).*expected a number as in the training data"):
        predict(folder, tmp_path / "new.csv", tmp_path / "out.csv", device="cpu")
